/*
 * What `rma` uses of libfabric, behind functions that can be called from Rust: most of libfabric's interface is inline
 * functions in its headers, which look up what they call in tables of pointers.
 *
 * Nothing is linked: the library is loaded when it is first asked for, so that a program starts where there is none.
 *
 * Errors are negative numbers of libfabric's, which are the system's where it has them. The caller sees to it that
 * an endpoint's functions are not called at the same time, and that memory outlives what is registered and what is
 * under way: see ffi.rs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

/* What is asked of the library: an older one refuses, a newer one does as this one did. */
#define VERSION FI_VERSION(1, 14)
#define POLLED_MAX 64

struct tw_ofi {
    struct fi_info *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    /* One for each slot: some providers keep notes of their own in it while a read is under way. */
    struct fi_context2 *contexts;
    uint32_t slots;
    int wait_fd;
};

struct tw_ofi_region {
    struct fid_mr *mr;
    void *desc;
    uint64_t key;
    uint64_t base;
};

struct tw_ofi_done {
    uint32_t slot;
    int32_t error;
};

static struct {
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
    void (*freeinfo)(struct fi_info *);
    struct fi_info *(*dupinfo)(const struct fi_info *);
    int (*fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
    const char *(*strerror)(int);
} lib;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const char *load_error;

/* With the version of each symbol that goes with the structures of the headers. */
static void *symbol(void *library, const char *name, const char *version)
{
    void *found = dlvsym(library, name, version);
    if (!found && !load_error)
        load_error = "libfabric.so.1 is one without the interface of version 1.14";
    return found;
}

static void resolve(void)
{
    void *library = dlopen("libfabric.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        char *kept = why ? strdup(why) : NULL;
        load_error = kept ? kept : "libfabric.so.1 cannot be loaded";
        return;
    }
    *(void **)&lib.getinfo = symbol(library, "fi_getinfo", "FABRIC_1.3");
    *(void **)&lib.freeinfo = symbol(library, "fi_freeinfo", "FABRIC_1.3");
    *(void **)&lib.dupinfo = symbol(library, "fi_dupinfo", "FABRIC_1.3");
    *(void **)&lib.fabric = symbol(library, "fi_fabric", "FABRIC_1.1");
    *(void **)&lib.strerror = symbol(library, "fi_strerror", "FABRIC_1.0");
    if (load_error)
        return;
    /* The first question initializes all providers, whatever it asks for. */
    struct fi_info *providers = NULL;
    if (lib.getinfo(VERSION, NULL, NULL, FI_PROV_ATTR_ONLY, NULL, &providers) == 0)
        lib.freeinfo(providers);
}

/* Libraries of some providers take the signals of a crash, and of being ended, for themselves when they are loaded. */
static void load(void)
{
    struct sigaction before[NSIG];
    int known[NSIG];
    for (int number = 1; number < NSIG; number++)
        known[number] = sigaction(number, NULL, &before[number]) == 0;
    resolve();
    for (int number = 1; number < NSIG; number++) {
        struct sigaction now;
        if (known[number] && sigaction(number, NULL, &now) == 0 && now.sa_handler != before[number].sa_handler)
            sigaction(number, &before[number], NULL);
    }
}

/* Null once the library is there, or why it is not. */
const char *tw_ofi_load(void)
{
    pthread_once(&once, load);
    return load_error;
}

/* Of an error of any of these functions. */
const char *tw_ofi_strerror(int error)
{
    return lib.strerror ? lib.strerror(error < 0 ? -error : error) : "libfabric is not loaded";
}

/* Ends what is under way: nobody touches registered memory once this has succeeded. */
int tw_ofi_close_endpoint(struct tw_ofi *ofi)
{
    int error = ofi->ep ? fi_close(&ofi->ep->fid) : 0;
    if (!error)
        ofi->ep = NULL;
    return error;
}

/* Behind tw_ofi_close_endpoint, and when nothing is registered any more. */
void tw_ofi_close(struct tw_ofi *ofi)
{
    if (ofi->cq)
        fi_close(&ofi->cq->fid);
    if (ofi->av)
        fi_close(&ofi->av->fid);
    if (ofi->domain)
        fi_close(&ofi->domain->fid);
    if (ofi->fabric)
        fi_close(&ofi->fabric->fid);
    if (ofi->info)
        lib.freeinfo(ofi->info);
    free(ofi->contexts);
    free(ofi);
}

static int find(struct tw_ofi *ofi, const char *provider, const char *node, int serves)
{
    struct fi_info *hints = lib.dupinfo(NULL);
    if (!hints)
        return -FI_ENOMEM;
    hints->caps = FI_RMA | (serves ? FI_REMOTE_READ : FI_READ);
    hints->mode = FI_CONTEXT | FI_CONTEXT2;
    hints->ep_attr->type = FI_EP_RDM;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
    /* With addresses, the provider of shared memory reads another process past its keys. */
    if (strcmp(provider, "shm") != 0)
        hints->domain_attr->mr_mode |= FI_MR_VIRT_ADDR;
    hints->domain_attr->threading = FI_THREAD_SAFE;
    hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
    hints->fabric_attr->prov_name = strdup(provider);
    int error = -FI_ENOMEM;
    if (hints->fabric_attr->prov_name)
        error = lib.getinfo(VERSION, node, NULL, node && serves ? FI_SOURCE : 0, hints, &ofi->info);
    lib.freeinfo(hints);
    return error;
}

static int open_queue(struct tw_ofi *ofi)
{
    struct fi_cq_attr attr = {.size = ofi->slots, .format = FI_CQ_FORMAT_CONTEXT, .wait_obj = FI_WAIT_FD};
    int error = fi_cq_open(ofi->domain, &attr, &ofi->cq, NULL);
    if (!error) {
        if (fi_control(&ofi->cq->fid, FI_GETWAIT, &ofi->wait_fd))
            ofi->wait_fd = -1;
        return 0;
    }
    /* One that can only be asked. */
    attr.wait_obj = FI_WAIT_NONE;
    return fi_cq_open(ofi->domain, &attr, &ofi->cq, NULL);
}

/*
 * Opens an endpoint of `provider` with a queue for `slots` reads. `node` is where it is, of one that serves, or where
 * it is to connect; null where the provider has other addresses. After an error `step` is what failed.
 */
int tw_ofi_open(const char *provider, const char *node, int serves, uint32_t slots, struct tw_ofi **out,
                const char **step)
{
    struct tw_ofi *ofi = calloc(1, sizeof *ofi);
    *step = "memory";
    if (!ofi)
        return -FI_ENOMEM;
    ofi->slots = slots;
    ofi->wait_fd = -1;
    ofi->contexts = calloc(slots, sizeof *ofi->contexts);
    int error = ofi->contexts ? 0 : -FI_ENOMEM;
    if (!error && (*step = "fi_getinfo", error = find(ofi, provider, node, serves)) == 0 &&
        (*step = "fi_fabric", error = lib.fabric(ofi->info->fabric_attr, &ofi->fabric, NULL)) == 0 &&
        (*step = "fi_domain", error = fi_domain(ofi->fabric, ofi->info, &ofi->domain, NULL)) == 0) {
        struct fi_av_attr attr = {.type = FI_AV_UNSPEC, .count = 1};
        if ((*step = "fi_av_open", error = fi_av_open(ofi->domain, &attr, &ofi->av, NULL)) == 0 &&
            (*step = "fi_cq_open", error = open_queue(ofi)) == 0 &&
            (*step = "fi_endpoint", error = fi_endpoint(ofi->domain, ofi->info, &ofi->ep, NULL)) == 0 &&
            (*step = "fi_ep_bind", error = fi_ep_bind(ofi->ep, &ofi->av->fid, 0)) == 0 &&
            (error = fi_ep_bind(ofi->ep, &ofi->cq->fid, FI_TRANSMIT | FI_RECV)) == 0) {
            *step = "fi_enable";
            error = fi_enable(ofi->ep);
        }
    }
    if (error) {
        /* Nothing is under way, and nothing is registered. */
        tw_ofi_close_endpoint(ofi);
        tw_ofi_close(ofi);
        return error;
    }
    *out = ofi;
    return 0;
}

/* A descriptor that tells of completions, or -1. */
int tw_ofi_wait_fd(const struct tw_ofi *ofi)
{
    return ofi->wait_fd;
}

/* Whether that descriptor may be waited for: 0, or there is something to poll first. */
int tw_ofi_trywait(struct tw_ofi *ofi)
{
    struct fid *fids[1] = {&ofi->cq->fid};
    return fi_trywait(ofi->fabric, fids, 1);
}

/* The format of names, FI_FORMAT_UNSPEC and so on. */
uint32_t tw_ofi_format(const struct tw_ofi *ofi)
{
    return ofi->info->addr_format;
}

/* The endpoint's own name; `len` is the room for it, and then its length. */
int tw_ofi_name(struct tw_ofi *ofi, void *name, size_t *len)
{
    return fi_getname(&ofi->ep->fid, name, len);
}

/* Makes a peer known by its name, behind which there are zeros enough for any format. */
int tw_ofi_insert(struct tw_ofi *ofi, const void *name, uint64_t *peer)
{
    fi_addr_t address = FI_ADDR_NOTAVAIL;
    int count = fi_av_insert(ofi->av, name, 1, &address, 0, NULL);
    *peer = address;
    return count == 1 ? 0 : count < 0 ? count : -FI_EINVAL;
}

/* Whether memory that is read into has to be registered. */
int tw_ofi_registers_local(const struct tw_ofi *ofi)
{
    return (ofi->info->domain_attr->mr_mode & FI_MR_LOCAL) != 0;
}

/* Registers memory for peers to read, or to read into. `key` is a wish. */
int tw_ofi_register(struct tw_ofi *ofi, void *base, size_t len, uint64_t key, int remote, struct tw_ofi_region *out)
{
    uint64_t access = remote ? FI_REMOTE_READ : FI_READ;
    int error = fi_mr_reg(ofi->domain, base, len, access, 0, key, 0, &out->mr, NULL);
    if (error)
        return error;
    out->desc = fi_mr_desc(out->mr);
    out->key = fi_mr_key(out->mr);
    out->base = ofi->info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)base : 0;
    if (remote && out->key == FI_KEY_NOTAVAIL) {
        fi_close(&out->mr->fid);
        return -FI_ENOSYS;
    }
    return 0;
}

int tw_ofi_deregister(struct fid_mr *mr)
{
    return fi_close(&mr->fid);
}

/* Begins a read; -FI_EAGAIN if there is no room for it, or no connection yet. */
int tw_ofi_read(struct tw_ofi *ofi, uint32_t slot, void *to, size_t len, void *desc, uint64_t peer, uint64_t address,
                uint64_t key)
{
    return (int)fi_read(ofi->ep, to, len, desc, peer, address, key, &ofi->contexts[slot]);
}

/*
 * Lets the provider go on, and answers how many reads have ended, up to `max`, or an error of the queue itself. An
 * error of a read is a positive number.
 */
int tw_ofi_poll(struct tw_ofi *ofi, struct tw_ofi_done *done, size_t max)
{
    struct fi_cq_entry entries[POLLED_MAX];
    if (max > POLLED_MAX)
        max = POLLED_MAX;
    for (;;) {
        ssize_t count = fi_cq_read(ofi->cq, entries, max);
        if (count == -FI_EAGAIN)
            return 0;
        struct fi_cq_err_entry failed = {0};
        if (count == -FI_EAVAIL) {
            count = fi_cq_readerr(ofi->cq, &failed, 0);
            if (count == -FI_EAGAIN)
                return 0;
            entries[0].op_context = failed.op_context;
            if (!failed.err)
                failed.err = FI_EIO;
        }
        if (count < 0)
            return (int)count;
        int known = 0;
        for (ssize_t i = 0; i < count; i++) {
            uintptr_t context = (uintptr_t)entries[i].op_context, first = (uintptr_t)ofi->contexts;
            /* Others are none of a read. */
            if (context < first || context >= (uintptr_t)(ofi->contexts + ofi->slots))
                continue;
            done[known].slot = (uint32_t)((context - first) / sizeof *ofi->contexts);
            done[known++].error = failed.err;
        }
        if (known)
            return known;
    }
}
