/* Watches the calls on files under one directory: the N-th of a kind fails, or those that change something are logged.
 * LD_PRELOADed. `under` is the beginning of a path.
 *
 * fault_arm(kind, n, what, under): from now on the n-th call (from 1) of `kind` on a file under `under`
 *   what > 0: fails with this errno; ENOSPC stays so for every later call that takes room, as a full disk does
 *   what = -1: writes half of what it should; what follows fails with ENOSPC
 * kind: o(pen to write) O(pen to read) w(rite) s(ync) r(ename) i(n: read) u(nlink). fault_count() says how many there were.
 *
 * record_arm(log, under): from now on this process, its threads and its forks append to `log`, which must exist, in the
 * order in which the calls took effect. A process that is started with RECORD_LOG and RECORD_UNDER in its environment
 * does so from its start.
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

static char under[PATH_MAX], failing;
static atomic_long calls;
static atomic_int full, *lock;
static long failing_at;
static int failing_with, log_fd = -1;

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

static int real_open(const char *path, int flags) { REAL(open); return real(path, flags, 0); }
static ssize_t real_writev(int fd, const struct iovec *parts, int n) { REAL(writev); return real(fd, parts, n); }

void fault_arm(char kind, long n, int what, const char *directory) {
    calls = 0; full = 0; failing = kind; failing_at = n; failing_with = what;
    strncpy(under, directory, sizeof under - 1);
}

long fault_count(void) { return calls; }

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

static int below(const char *path) { return strncmp(path, under, strlen(under)) == 0; }

/* 1 if a path is under the directory; `whole` becomes its absolute path. */
static int inside_at(int at, const char *path, char whole[2 * PATH_MAX]) {
    if (!under[0] || !path) return 0;
    if (path[0] == '/') snprintf(whole, 2 * PATH_MAX, "%s", path);
    else {
        char here[PATH_MAX], link[64];
        if (at == AT_FDCWD) { if (!getcwd(here, sizeof here)) return 0; }
        else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", at);
            ssize_t n = readlink(link, here, sizeof here - 1);
            if (n <= 0) return 0;
            here[n] = 0;
        }
        snprintf(whole, 2 * PATH_MAX, "%s/%s", here, path);
    }
    return below(whole);
}

static int inside_fd(int fd, char path[2 * PATH_MAX]) {
    char link[64];
    if (!under[0] || fd < 3 || fd == log_fd) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, 2 * PATH_MAX - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return below(path);
}

/* 0: go on; > 0: fail with it; -1: half */
static int due(char kind) {
    int takes_room = kind == 'w' || kind == 'o';
    if (kind == failing && ++calls == failing_at && !(full && takes_room)) {
        if (failing_with == -1 || failing_with == ENOSPC) full = 1;
        return failing_with;
    }
    return full && takes_room ? ENOSPC : 0;
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

/* Run CALL, unless it is due to fail; where IN holds and there is a log, keep the lock meanwhile, and run RECORD if it
 * did not fail. HALF: what makes it write half. */
#define CALL(in, kind, half, type, call, record) do { \
    int here = (in), verdict = here ? due(kind) : 0; \
    if (verdict > 0) { errno = verdict; return -1; } \
    if (verdict < 0) { half; } \
    if (!here || log_fd < 0) return call; \
    hold(); type result = call; int error = errno; \
    if (result >= 0) { record; } \
    atomic_store(lock, 0); errno = error; return result; } while (0)

#define PATHS char one[2 * PATH_MAX], two[2 * PATH_MAX]; (void)one; (void)two
#define MODE(last) va_list more; va_start(more, last); mode_t mode = va_arg(more, mode_t); va_end(more)
#define OPENED if ((flags & O_ACCMODE) != O_RDONLY) put_paths('O', inode(result), flags, one, NULL)
#define KIND ((flags & O_CREAT) ? 'o' : 'O')

#define OPEN(name) int name(const char *path, int flags, ...) { REAL(name); MODE(flags); PATHS; \
    CALL(inside_at(AT_FDCWD, path, one), KIND, , int, real(path, flags, mode), OPENED); }
OPEN(open)
OPEN(open64)
#define OPENAT(name) int name(int at, const char *path, int flags, ...) { REAL(name); MODE(flags); PATHS; \
    CALL(inside_at(at, path, one), KIND, , int, real(at, path, flags, mode), OPENED); }
OPENAT(openat)
OPENAT(openat64)

/* Written where: an O_APPEND file at its end, as it is behind the call in any case. */
#define HERE(fd) (lseek(fd, 0, SEEK_CUR) - result)
ssize_t write(int fd, const void *data, size_t n) { REAL(write); PATHS;
    CALL(inside_fd(fd, one), 'w', n /= 2, ssize_t, real(fd, data, n), put('w', inode(fd), HERE(fd), data, (size_t)result, "", 0)); }
#define PWRITE(name, off) ssize_t name(int fd, const void *data, size_t n, off at) { REAL(name); PATHS; \
    CALL(inside_fd(fd, one), 'w', n /= 2, ssize_t, real(fd, data, n, at), put('w', inode(fd), at, data, (size_t)result, "", 0)); }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)
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
ssize_t read(int fd, void *data, size_t n) { REAL(read); PATHS; CALL(inside_fd(fd, one), 'i', , ssize_t, real(fd, data, n), ); }
#define PREAD(name, off) ssize_t name(int fd, void *data, size_t n, off at) { REAL(name); PATHS; \
    CALL(inside_fd(fd, one), 'i', , ssize_t, real(fd, data, n, at), ); }
PREAD(pread, off_t)
PREAD(pread64, off64_t)
/* Copies inside the system: to libraries they are not there, and these then read and write. */
#define COPY(name, to, declared, given) ssize_t name declared { REAL(name); PATHS; \
    if (inside_fd(to, one)) { errno = ENOSYS; return -1; } return real given; }
COPY(sendfile, to, (int to, int from, off_t *at, size_t n), (to, from, at, n))
COPY(sendfile64, to, (int to, int from, off64_t *at, size_t n), (to, from, at, n))
COPY(copy_file_range, to, (int from, off64_t *a, int to, off64_t *b, size_t n, unsigned flags), (from, a, to, b, n, flags))

#define CUT(name, off) int name(int fd, off size) { REAL(name); PATHS; \
    CALL(inside_fd(fd, one), 't', , int, real(fd, size), put('t', inode(fd), size, "", 0, "", 0)); }
CUT(ftruncate, off_t)
CUT(ftruncate64, off64_t)
int fsync(int fd) { REAL(fsync); PATHS; struct stat s;
    CALL(inside_fd(fd, one), 's', , int, real(fd), put_paths('s', inode(fd), 0, !fstat(fd, &s) && S_ISDIR(s.st_mode) ? one : "", NULL)); }
int fdatasync(int fd) { REAL(fdatasync); PATHS;
    CALL(inside_fd(fd, one), 's', , int, real(fd), put_paths('s', inode(fd), 0, "", NULL)); }
#define MMAP(name, off) void *name(void *where, size_t n, int protect, int flags, int fd, off at) { REAL(name); PATHS; \
    if (log_fd >= 0 && (protect & PROT_WRITE) && (flags & MAP_SHARED) && inside_fd(fd, one)) { \
        hold(); put_paths('M', inode(fd), 0, one, NULL); atomic_store(lock, 0); } \
    return real(where, n, protect, flags, fd, at); }
MMAP(mmap, off_t)
MMAP(mmap64, off64_t)

#define BOTH(a, b) (inside_at(a, from, one) | inside_at(b, to, two))
int rename(const char *from, const char *to) { REAL(rename); PATHS;
    CALL(BOTH(AT_FDCWD, AT_FDCWD), 'r', , int, real(from, to), put_paths('r', 0, 0, one, two)); }
int renameat(int a, const char *from, int b, const char *to) { REAL(renameat); PATHS;
    CALL(BOTH(a, b), 'r', , int, real(a, from, b, to), put_paths('r', 0, 0, one, two)); }
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) { REAL(renameat2); PATHS;
    CALL(BOTH(a, b), 'r', , int, real(a, from, b, to, flags), put_paths('r', 0, (flags & RENAME_EXCHANGE) != 0, one, two)); }
int link(const char *from, const char *to) { REAL(link); PATHS;
    CALL(BOTH(AT_FDCWD, AT_FDCWD), 'l', , int, real(from, to), put_paths('l', 0, 0, one, two)); }
int linkat(int a, const char *from, int b, const char *to, int flags) { REAL(linkat); PATHS;
    CALL(BOTH(a, b), 'l', , int, real(a, from, b, to, flags), put_paths('l', 0, 0, one, two)); }
#define ONE(name, kind) CALL(inside_at(AT_FDCWD, path, one), kind, , int, name, put_paths(kind, 0, 0, one, NULL))
#define ONE_AT(name, kind) CALL(inside_at(at, path, one), kind, , int, name, put_paths(kind, 0, 0, one, NULL))
int unlink(const char *path) { REAL(unlink); PATHS; ONE(real(path), 'u'); }
int unlinkat(int at, const char *path, int flags) { REAL(unlinkat); PATHS;
    char kind = (flags & AT_REMOVEDIR) ? 'd' : 'u'; ONE_AT(real(at, path, flags), kind); }
int rmdir(const char *path) { REAL(rmdir); PATHS; ONE(real(path), 'd'); }
int mkdir(const char *path, mode_t mode) { REAL(mkdir); PATHS; ONE(real(path, mode), 'm'); }
int mkdirat(int at, const char *path, mode_t mode) { REAL(mkdirat); PATHS; ONE_AT(real(at, path, mode), 'm'); }
