/* Logs every call that changes a file or a directory under one directory, in the order in which they took effect.
 * LD_PRELOADed.
 *
 * record_arm(log, under): from now on this process, its threads and its forks append to `log`, which must exist. A
 * process that is started with RECORD_LOG and RECORD_UNDER in its environment does so from its start.
 * A record: kind (1 byte), inode and a (8 bytes each), lengths of two byte strings (4 bytes each), the strings.
 *   O  opened to write: inode, a: flags; path      w  written: inode, a: offset; the bytes
 *   t  cut or extended: inode, a: size             s  synced: inode; the path if it is a directory
 *   m  mkdir; path          d  rmdir; path         u  unlink; path
 *   r  rename: a is 1 if the names were exchanged; from, to
 *   l  link; from, to
 *   M  mapped to write and shared: inode; path. Writes through memory are not seen, so a reader refuses it.
 * A call and its record are one step for all processes: they hold a lock, the first bytes of `log`.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char under[PATH_MAX];
static int log_fd = -1;
static atomic_int *lock;

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int real_open(const char *path, int flags) { REAL(open); return real(path, flags, 0); }
static ssize_t real_writev(int fd, const struct iovec *parts, int n) { REAL(writev); return real(fd, parts, n); }

void record_arm(const char *log, const char *directory) {
    log_fd = real_open(log, O_RDWR | O_APPEND | O_CLOEXEC);
    if (log_fd < 0) { perror(log); _exit(70); }
    lock = mmap(NULL, sizeof *lock, PROT_READ | PROT_WRITE, MAP_SHARED, log_fd, 0);
    if (lock == MAP_FAILED) { perror(log); _exit(70); }
    strncpy(under, directory, sizeof under - 1);
}

__attribute__((constructor)) static void arm_from_environment(void) {
    const char *log = getenv("RECORD_LOG"), *directory = getenv("RECORD_UNDER");
    if (log && directory) record_arm(log, directory);
}

static int below(const char *path) {
    size_t n = strlen(under);
    return n && strncmp(path, under, n) == 0 && (path[n] == '/' || !path[n]);
}

/* The absolute path of a name if it is under the directory, else NULL. */
static const char *inside_at(int at, const char *path, char whole[2 * PATH_MAX]) {
    if (!under[0] || !path) return NULL;
    if (path[0] == '/') snprintf(whole, 2 * PATH_MAX, "%s", path);
    else {
        char here[PATH_MAX], link[64];
        if (at == AT_FDCWD) { if (!getcwd(here, sizeof here)) return NULL; }
        else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", at);
            ssize_t n = readlink(link, here, sizeof here - 1);
            if (n <= 0) return NULL;
            here[n] = 0;
        }
        snprintf(whole, 2 * PATH_MAX, "%s/%s", here, path);
    }
    return below(whole) ? whole : NULL;
}

static int inside_fd(int fd, char path[2 * PATH_MAX]) {
    char link[64];
    if (!under[0] || fd < 0 || fd == log_fd) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, 2 * PATH_MAX - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return below(path);
}

static uint64_t inode(int fd) { struct stat s; return fstat(fd, &s) ? 0 : s.st_ino; }

static void hold(void) {
    int free = 0;
    while (!atomic_compare_exchange_weak(lock, &free, 1)) { free = 0; sched_yield(); }
}

static void put(char kind, uint64_t file, int64_t a, const void *one, size_t n1, const void *two, size_t n2) {
    char head[25];
    uint32_t lengths[2] = {(uint32_t)n1, (uint32_t)n2};
    head[0] = kind;
    memcpy(head + 1, &file, 8); memcpy(head + 9, &a, 8); memcpy(head + 17, lengths, 8);
    struct iovec parts[3] = {{head, sizeof head}, {(void *)one, n1}, {(void *)two, n2}};
    if (real_writev(log_fd, parts, 3) != (ssize_t)(sizeof head + n1 + n2)) { perror("recorder"); _exit(70); }
}

static void put_paths(char kind, uint64_t file, int64_t a, const char *one, const char *two) {
    put(kind, file, a, one, strlen(one), two ? two : "", two ? strlen(two) : 0);
}

/* Run CALL; where IN holds, keep the lock meanwhile, and run RECORD if it did not fail. */
#define STEP(in, type, call, record) do { \
    if (!(in)) return call; \
    hold(); type result = call; int error = errno; \
    if (result >= 0) { record; } \
    atomic_store(lock, 0); errno = error; return result; } while (0)

#define WRITES(flags) (((flags) & O_ACCMODE) != O_RDONLY)
#define PATHS char one[2 * PATH_MAX], two[2 * PATH_MAX]; (void)one; (void)two
#define MODE(last) va_list more; va_start(more, last); mode_t mode = va_arg(more, mode_t); va_end(more)

#define OPEN(name) int name(const char *path, int flags, ...) { REAL(name); MODE(flags); PATHS; \
    STEP(WRITES(flags) && inside_at(AT_FDCWD, path, one), int, real(path, flags, mode), \
         put_paths('O', inode(result), flags, one, NULL)); }
OPEN(open)
OPEN(open64)
#define OPENAT(name) int name(int at, const char *path, int flags, ...) { REAL(name); MODE(flags); PATHS; \
    STEP(WRITES(flags) && inside_at(at, path, one), int, real(at, path, flags, mode), \
         put_paths('O', inode(result), flags, one, NULL)); }
OPENAT(openat)
OPENAT(openat64)

/* Written where: an O_APPEND file at its end, as it is behind the call in any case. */
#define HERE(fd) (lseek(fd, 0, SEEK_CUR) - result)
ssize_t write(int fd, const void *data, size_t n) { REAL(write); PATHS;
    STEP(inside_fd(fd, one), ssize_t, real(fd, data, n), put('w', inode(fd), HERE(fd), data, (size_t)result, "", 0)); }
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) { REAL(pwrite); PATHS;
    STEP(inside_fd(fd, one), ssize_t, real(fd, data, n, at), put('w', inode(fd), at, data, (size_t)result, "", 0)); }
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) { REAL(pwrite64); PATHS;
    STEP(inside_fd(fd, one), ssize_t, real(fd, data, n, at), put('w', inode(fd), at, data, (size_t)result, "", 0)); }
ssize_t writev(int fd, const struct iovec *parts, int n) {
    ssize_t total = 0;
    for (int i = 0; i < n; i++) { /* one write after another: the same file, and each is recorded */
        ssize_t written = write(fd, parts[i].iov_base, parts[i].iov_len);
        if (written < 0) return total ? total : written;
        total += written;
        if ((size_t)written < parts[i].iov_len) break;
    }
    return total;
}
/* Copies inside the system: to libraries they are not there, and these then read and write. */
ssize_t sendfile(int to, int from, off_t *at, size_t n) { REAL(sendfile); PATHS;
    if (inside_fd(to, one)) { errno = ENOSYS; return -1; } return real(to, from, at, n); }
ssize_t sendfile64(int to, int from, off64_t *at, size_t n) { REAL(sendfile64); PATHS;
    if (inside_fd(to, one)) { errno = ENOSYS; return -1; } return real(to, from, at, n); }
ssize_t copy_file_range(int from, off64_t *a, int to, off64_t *b, size_t n, unsigned flags) { REAL(copy_file_range); PATHS;
    if (inside_fd(to, one)) { errno = ENOSYS; return -1; } return real(from, a, to, b, n, flags); }

int ftruncate(int fd, off_t size) { REAL(ftruncate); PATHS;
    STEP(inside_fd(fd, one), int, real(fd, size), put('t', inode(fd), size, "", 0, "", 0)); }
int ftruncate64(int fd, off64_t size) { REAL(ftruncate64); PATHS;
    STEP(inside_fd(fd, one), int, real(fd, size), put('t', inode(fd), size, "", 0, "", 0)); }
int fsync(int fd) { REAL(fsync); PATHS; struct stat s;
    STEP(inside_fd(fd, one), int, real(fd), put_paths('s', inode(fd), 0, !fstat(fd, &s) && S_ISDIR(s.st_mode) ? one : "", NULL)); }
int fdatasync(int fd) { REAL(fdatasync); PATHS;
    STEP(inside_fd(fd, one), int, real(fd), put_paths('s', inode(fd), 0, "", NULL)); }
void *mmap(void *where, size_t n, int protect, int flags, int fd, off_t at) { REAL(mmap); PATHS;
    if ((protect & PROT_WRITE) && (flags & MAP_SHARED) && inside_fd(fd, one)) { hold(); put_paths('M', inode(fd), 0, one, NULL); atomic_store(lock, 0); }
    return real(where, n, protect, flags, fd, at); }
void *mmap64(void *where, size_t n, int protect, int flags, int fd, off64_t at) { REAL(mmap64); PATHS;
    if ((protect & PROT_WRITE) && (flags & MAP_SHARED) && inside_fd(fd, one)) { hold(); put_paths('M', inode(fd), 0, one, NULL); atomic_store(lock, 0); }
    return real(where, n, protect, flags, fd, at); }

int rename(const char *from, const char *to) { REAL(rename); PATHS;
    STEP(inside_at(AT_FDCWD, from, one) && inside_at(AT_FDCWD, to, two), int, real(from, to), put_paths('r', 0, 0, one, two)); }
int renameat(int a, const char *from, int b, const char *to) { REAL(renameat); PATHS;
    STEP(inside_at(a, from, one) && inside_at(b, to, two), int, real(a, from, b, to), put_paths('r', 0, 0, one, two)); }
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) { REAL(renameat2); PATHS;
    STEP(inside_at(a, from, one) && inside_at(b, to, two), int, real(a, from, b, to, flags),
         put_paths('r', 0, (flags & RENAME_EXCHANGE) != 0, one, two)); }
int link(const char *from, const char *to) { REAL(link); PATHS;
    STEP(inside_at(AT_FDCWD, from, one) && inside_at(AT_FDCWD, to, two), int, real(from, to), put_paths('l', 0, 0, one, two)); }
int linkat(int a, const char *from, int b, const char *to, int flags) { REAL(linkat); PATHS;
    STEP(inside_at(a, from, one) && inside_at(b, to, two), int, real(a, from, b, to, flags), put_paths('l', 0, 0, one, two)); }
int unlink(const char *path) { REAL(unlink); PATHS;
    STEP(inside_at(AT_FDCWD, path, one), int, real(path), put_paths('u', 0, 0, one, NULL)); }
int unlinkat(int at, const char *path, int flags) { REAL(unlinkat); PATHS;
    STEP(inside_at(at, path, one), int, real(at, path, flags), put_paths((flags & AT_REMOVEDIR) ? 'd' : 'u', 0, 0, one, NULL)); }
int rmdir(const char *path) { REAL(rmdir); PATHS;
    STEP(inside_at(AT_FDCWD, path, one), int, real(path), put_paths('d', 0, 0, one, NULL)); }
int mkdir(const char *path, mode_t mode) { REAL(mkdir); PATHS;
    STEP(inside_at(AT_FDCWD, path, one), int, real(path, mode), put_paths('m', 0, 0, one, NULL)); }
int mkdirat(int at, const char *path, mode_t mode) { REAL(mkdirat); PATHS;
    STEP(inside_at(at, path, one), int, real(at, path, mode), put_paths('m', 0, 0, one, NULL)); }
