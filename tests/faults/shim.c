/* Makes the N-th call of a kind fail, or kills the process there, for files under one directory. LD_PRELOADed.
 *
 * fault_arm(kind, n, what, under): from now on the n-th call (from 1) of `kind` on a file under `under`
 *   what > 0: fails with this errno; ENOSPC stays so for every later call that takes room, as a full disk does
 *   what = -1: writes half of what it should; what follows fails with ENOSPC
 *   what = -9: the process kills itself by SIGKILL just before the call, -10 just after it
 * kind: o(pen to write) O(pen to read) w(rite) s(ync) r(ename) i(n: read) u(nlink), * any of them. fault_count() says how many there were.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long calls;
static atomic_int full;
static char kind, under[PATH_MAX];
static long at;
static int what;

void fault_arm(char k, long n, int w, const char *directory) {
    calls = 0;
    full = 0;
    kind = k;
    at = n;
    what = w;
    strncpy(under, directory, sizeof under - 1);
}

long fault_count(void) { return calls; }

static int inside(const char *path) {
    char whole[2 * PATH_MAX];
    if (!under[0] || !path) return 0;
    if (path[0] != '/') {
        char here[PATH_MAX];
        if (!getcwd(here, sizeof here)) return 0;
        snprintf(whole, sizeof whole, "%s/%s", here, path);
        path = whole;
    }
    return strncmp(path, under, strlen(under)) == 0;
}

static int inside_fd(int fd) {
    char link[64], path[PATH_MAX];
    if (!under[0] || fd < 3) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return inside(path);
}

/* 0: go on; > 0: fail with it; -1: half; -10: die afterwards */
static int due(char k) {
    if (kind != '*' && kind != k) return full && (k == 'w' || k == 'o') ? ENOSPC : 0;
    long n = ++calls;
    if (full && (k == 'w' || k == 'o')) return ENOSPC;
    if (n != at) return 0;
    if (what == -9) { raise(SIGKILL); pause(); }
    if (what == -1 || what == ENOSPC) full = 1;
    return what;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define DUE(k, here) \
    int verdict = (here) ? due(k) : 0; \
    if (verdict > 0) { errno = verdict; return -1; }
#define AFTER(result) do { __typeof__(result) _r = (result); if (verdict == -10) { raise(SIGKILL); pause(); } return _r; } while (0)

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        DUE((flags & O_CREAT) ? 'o' : 'O', inside(path)); AFTER(real(path, flags, mode)); }
OPEN(open)
OPEN(open64)
#define OPENAT(name) \
    int name(int at_fd, const char *path, int flags, ...) { \
        REAL(name); va_list more; va_start(more, flags); mode_t mode = va_arg(more, mode_t); va_end(more); \
        DUE((flags & O_CREAT) ? 'o' : 'O', inside(path)); AFTER(real(at_fd, path, flags, mode)); }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int fd, const void *data, size_t n) {
    REAL(write); DUE('w', inside_fd(fd)); AFTER(real(fd, data, verdict == -1 ? n / 2 : n)); }
ssize_t pwrite(int fd, const void *data, size_t n, off_t offset) {
    REAL(pwrite); DUE('w', inside_fd(fd)); AFTER(real(fd, data, verdict == -1 ? n / 2 : n, offset)); }
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t offset) {
    REAL(pwrite64); DUE('w', inside_fd(fd)); AFTER(real(fd, data, verdict == -1 ? n / 2 : n, offset)); }
ssize_t writev(int fd, const struct iovec *parts, int n) { REAL(writev); DUE('w', inside_fd(fd)); AFTER(real(fd, parts, n)); }
ssize_t read(int fd, void *data, size_t n) { REAL(read); DUE('i', inside_fd(fd)); AFTER(real(fd, data, n)); }
ssize_t pread(int fd, void *data, size_t n, off_t offset) { REAL(pread); DUE('i', inside_fd(fd)); AFTER(real(fd, data, n, offset)); }
ssize_t pread64(int fd, void *data, size_t n, off64_t offset) {
    REAL(pread64); DUE('i', inside_fd(fd)); AFTER(real(fd, data, n, offset)); }
int fsync(int fd) { REAL(fsync); DUE('s', inside_fd(fd)); AFTER(real(fd)); }
int fdatasync(int fd) { REAL(fdatasync); DUE('s', inside_fd(fd)); AFTER(real(fd)); }
int rename(const char *from, const char *to) { REAL(rename); DUE('r', inside(from) || inside(to)); AFTER(real(from, to)); }
int renameat(int a, const char *from, int b, const char *to) {
    REAL(renameat); DUE('r', inside(from) || inside(to)); AFTER(real(a, from, b, to)); }
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
    REAL(renameat2); DUE('r', inside(from) || inside(to)); AFTER(real(a, from, b, to, flags)); }
int unlink(const char *path) { REAL(unlink); DUE('u', inside(path)); AFTER(real(path)); }
int unlinkat(int a, const char *path, int flags) { REAL(unlinkat); DUE('u', inside(path)); AFTER(real(a, path, flags)); }
