/* Makes fsync and fdatasync fail with EIO while the file named by FAILING_SYNC exists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static int fails(void) {
    const char *trigger = getenv("FAILING_SYNC");
    return trigger && access(trigger, F_OK) == 0;
}

#define WRAP(name)                                                        \
    int name(int fd) {                                                    \
        static int (*real)(int);                                          \
        if (fails()) {                                                    \
            errno = EIO;                                                  \
            return -1;                                                    \
        }                                                                 \
        if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, #name);          \
        return real(fd);                                                  \
    }

WRAP(fsync)
WRAP(fdatasync)
