/* A disk that fails: preloaded, it lets the n-th call fail that changes something in a folder.

   CHAOS_FOLDER: the folder, without links. CHAOS_AT: n, counted in each process by itself.
   CHAOS_ERRNO: with what. CHAOS_FOR_GOOD: 1 where all later calls fail, too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static long calls;

static int is_inside(const char *path)
{
    const char *folder = getenv("CHAOS_FOLDER");
    size_t length = folder ? strlen(folder) : 0;
    return length && !strncmp(path, folder, length) && (path[length] == '/' || !path[length]);
}

static int descriptor_is_inside(int descriptor)
{
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return is_inside(path);
}

static int name_is_inside(int folder, const char *name)
{
    char here[PATH_MAX], path[PATH_MAX * 2];
    if (name[0] == '/')
        return is_inside(name);
    if (folder != AT_FDCWD)
        return descriptor_is_inside(folder);
    if (!getcwd(here, sizeof here))
        return 0;
    snprintf(path, sizeof path, "%s/%s", here, name);
    return is_inside(path);
}

static int fails(int inside)
{
    const char *at = getenv("CHAOS_AT"), *number = getenv("CHAOS_ERRNO");
    const char *for_good = getenv("CHAOS_FOR_GOOD");
    if (!inside || !at || !number)
        return 0;
    long call = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST), wanted = atol(at);
    if (call != wanted && !(call > wanted && for_good && *for_good == '1'))
        return 0;
    errno = atoi(number);
    return 1;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) \
        real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define OPENS(name) \
    int name(const char *path, int flags, ...) \
    { \
        REAL(name); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        if ((flags & O_CREAT) && fails(name_is_inside(AT_FDCWD, path))) \
            return -1; \
        return real(path, flags, mode); \
    }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name) \
    int name(int folder, const char *path, int flags, ...) \
    { \
        REAL(name); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        if ((flags & O_CREAT) && fails(name_is_inside(folder, path))) \
            return -1; \
        return real(folder, path, flags, mode); \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

ssize_t write(int descriptor, const void *data, size_t count)
{
    REAL(write);
    return fails(descriptor_is_inside(descriptor)) ? -1 : real(descriptor, data, count);
}

ssize_t writev(int descriptor, const struct iovec *parts, int count)
{
    REAL(writev);
    return fails(descriptor_is_inside(descriptor)) ? -1 : real(descriptor, parts, count);
}

int fsync(int descriptor)
{
    REAL(fsync);
    return fails(descriptor_is_inside(descriptor)) ? -1 : real(descriptor);
}

int rename(const char *from, const char *to)
{
    REAL(rename);
    return fails(name_is_inside(AT_FDCWD, to)) ? -1 : real(from, to);
}

int renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    REAL(renameat);
    return fails(name_is_inside(to_folder, to)) ? -1 : real(from_folder, from, to_folder, to);
}

int unlink(const char *path)
{
    REAL(unlink);
    return fails(name_is_inside(AT_FDCWD, path)) ? -1 : real(path);
}

int unlinkat(int folder, const char *path, int flags)
{
    REAL(unlinkat);
    return fails(name_is_inside(folder, path)) ? -1 : real(folder, path, flags);
}

int mkdir(const char *path, mode_t mode)
{
    REAL(mkdir);
    return fails(name_is_inside(AT_FDCWD, path)) ? -1 : real(path, mode);
}
