/* Makes directories look like full disks, for machines where a test can mount none.
 *
 * FULL_DISK_DIRECTORIES lists them, separated by colons. While the file `<directory>.full` exists, writes to files below
 * the directory fail with ENOSPC and the file system there has no free block. All else is left to the C library.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

static int below(const char *path) {
    const char *directory = getenv("FULL_DISK_DIRECTORIES");
    while (directory && *directory) {
        size_t length = strcspn(directory, ":");
        if (strncmp(path, directory, length) == 0 && (path[length] == '/' || path[length] == 0)) {
            char flag[PATH_MAX];
            snprintf(flag, sizeof flag, "%.*s.full", (int)length, directory);
            if (access(flag, F_OK) == 0) return 1;
        }
        directory += length;
        if (*directory == ':') directory++;
    }
    return 0;
}

static int full(int fd) {
    int saved = errno, found = 0;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length > 0) {
        path[length] = 0;
        found = below(path);
    }
    errno = saved;
    return found;
}

#define NEXT(name) static __typeof__(&name) next; if (!next) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define REFUSE(fd) if (full(fd)) { errno = ENOSPC; return -1; }

/* A library opened with RTLD_DEEPBIND would pass these functions by. */
void *dlopen(const char *path, int flags) { NEXT(dlopen); return next(path, flags & ~RTLD_DEEPBIND); }

ssize_t write(int fd, const void *data, size_t size) { NEXT(write); REFUSE(fd) return next(fd, data, size); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { NEXT(pwrite); REFUSE(fd) return next(fd, data, size, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { NEXT(pwrite64); REFUSE(fd) return next(fd, data, size, at); }
ssize_t writev(int fd, const struct iovec *data, int count) { NEXT(writev); REFUSE(fd) return next(fd, data, count); }
ssize_t pwritev(int fd, const struct iovec *data, int count, off_t at) { NEXT(pwritev); REFUSE(fd) return next(fd, data, count, at); }
ssize_t pwritev64(int fd, const struct iovec *data, int count, off64_t at) { NEXT(pwritev64); REFUSE(fd) return next(fd, data, count, at); }
int fallocate(int fd, int mode, off_t at, off_t size) { NEXT(fallocate); REFUSE(fd) return next(fd, mode, at, size); }
int fallocate64(int fd, int mode, off64_t at, off64_t size) { NEXT(fallocate64); REFUSE(fd) return next(fd, mode, at, size); }
int posix_fallocate(int fd, off_t at, off_t size) { NEXT(posix_fallocate); return full(fd) ? ENOSPC : next(fd, at, size); }
int posix_fallocate64(int fd, off64_t at, off64_t size) { NEXT(posix_fallocate64); return full(fd) ? ENOSPC : next(fd, at, size); }

#define NO_BLOCKS(condition) if (result == 0 && (condition)) found->f_bfree = found->f_bavail = 0; return result
int statvfs(const char *path, struct statvfs *found) { NEXT(statvfs); int result = next(path, found); NO_BLOCKS(below(path)); }
int statvfs64(const char *path, struct statvfs64 *found) { NEXT(statvfs64); int result = next(path, found); NO_BLOCKS(below(path)); }
int fstatvfs(int fd, struct statvfs *found) { NEXT(fstatvfs); int result = next(fd, found); NO_BLOCKS(full(fd)); }
int fstatvfs64(int fd, struct statvfs64 *found) { NEXT(fstatvfs64); int result = next(fd, found); NO_BLOCKS(full(fd)); }
int statfs(const char *path, struct statfs *found) { NEXT(statfs); int result = next(path, found); NO_BLOCKS(below(path)); }
int statfs64(const char *path, struct statfs64 *found) { NEXT(statfs64); int result = next(path, found); NO_BLOCKS(below(path)); }
