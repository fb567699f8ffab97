/* Makes fsync and fdatasync slow, so that a crash test can kill an engine between write and sync.
 *
 * A fast disk hides the difference between "written" and "durable": the window is a few microseconds wide. Preloaded
 * into an engine, this opens it to SLOW_FSYNC_MS milliseconds. Everything else is left to the C library.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static void wait_first(void) {
    const char *text = getenv("SLOW_FSYNC_MS");
    long ms = text ? strtol(text, NULL, 10) : 0;
    if (ms <= 0) return;
    struct timespec pause = {ms / 1000, (ms % 1000) * 1000000L};
    nanosleep(&pause, NULL);
}

int fsync(int fd) {
    static int (*next)(int);
    if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_first();
    return next(fd);
}

int fdatasync(int fd) {
    static int (*next)(int);
    if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_first();
    return next(fd);
}
