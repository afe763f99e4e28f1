/* Preloaded into ralph: makes the Nth call that writes, syncs or renames a regular file fail, once.

   FAIL_AT     which call, from 1; 0: none
   FAIL_HOW    "error": it fails with ENOSPC; "short": a write takes half of what it was given;
               "slow": it takes half a second, whatever signal comes
   FAIL_COUNT  a file that holds the number of calls so far
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static long calls, fail_at;
static int is_short, is_slow;
static int count_fd = -1;

__attribute__((constructor)) static void begin(void)
{
    const char *at = getenv("FAIL_AT"), *how = getenv("FAIL_HOW");
    fail_at = at ? atol(at) : 0;
    is_short = how && strcmp(how, "short") == 0;
    is_slow = how && strcmp(how, "slow") == 0;
    const char *count_file = getenv("FAIL_COUNT");
    if (count_file)
        count_fd = open(count_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    unsetenv("LD_PRELOAD"); /* what ralph starts is left alone */
}

static int is_regular(int fd)
{
    struct stat status;
    return fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

static int fails(void)
{
    char text[32];
    long call = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    int size = snprintf(text, sizeof text, "%08ld\n", call);
    if (count_fd >= 0 && pwrite(count_fd, text, size, 0) != size)
        abort();
    if (call == fail_at && is_slow) {
        struct timespec left = {0, 500000000};
        while (nanosleep(&left, &left) != 0)
            ;
        return 0;
    }
    return call == fail_at;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size)
{
    if (is_regular(fd) && fails()) {
        if (is_short && size > 1)
            return REAL(write)(fd, data, size / 2);
        errno = ENOSPC;
        return -1;
    }
    return REAL(write)(fd, data, size);
}

#define FAILING(name, declared, passed)  \
    int name declared                    \
    {                                    \
        if (fails()) {                   \
            errno = ENOSPC;              \
            return -1;                   \
        }                                \
        return REAL(name) passed;        \
    }

FAILING(fsync, (int fd), (fd))
FAILING(fdatasync, (int fd), (fd))
FAILING(rename, (const char *from, const char *to), (from, to))
FAILING(renameat, (int a, const char *from, int b, const char *to), (a, from, b, to))
