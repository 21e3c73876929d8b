/* Makes pthread_create fail with EAGAIN while the file named by FAILING_THREADS exists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg) {
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    const char *trigger = getenv("FAILING_THREADS");
    if (trigger && access(trigger, F_OK) == 0) return EAGAIN;
    if (!real) real = (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_NEXT, "pthread_create");
    return real(thread, attr, start, arg);
}
