/* Set the clock on the wall for one process and its children, and for nobody else: LD_PRELOAD this.
 *
 * The file that CLOCK_AHEAD names holds a double: how many seconds the clock is ahead. It may change at any time.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) (*(__typeof__(&name)) real(#name, &name##_found))

static void *real(const char *name, void **found) {
    if (!*found) {
        /* Of several versions of pthread_cond_timedwait, dlsym may take the oldest, whose conditions are others. */
        *found = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");
        if (!*found)
            *found = dlsym(RTLD_NEXT, name);
    }
    return *found;
}

static time_t seconds_ahead(void) {
    static const double none = 0.0;
    static const volatile double *ahead;
    if (!ahead) {
        const char *name = getenv("CLOCK_AHEAD");
        int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
        void *shared = file < 0 ? MAP_FAILED : mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, file, 0);
        if (file >= 0)
            close(file);
        ahead = shared == MAP_FAILED ? &none : shared;
    }
    return (time_t)*ahead;
}

/* The kernel waits by its own clock. */
static const struct timespec *for_kernel(const struct timespec *deadline, struct timespec *copy) {
    *copy = *deadline;
    copy->tv_sec -= seconds_ahead();
    return copy;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static void *clock_gettime_found;
    int error = REAL(clock_gettime)(clock, now);
    if (!error && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += seconds_ahead();
    return error;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now)
        *now = precise.tv_sec;
    return precise.tv_sec;
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict deadline) {
    static void *sem_timedwait_found;
    struct timespec copy;
    return REAL(sem_timedwait)(semaphore, for_kernel(deadline, &copy));
}

int pthread_cond_timedwait(
    pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex, const struct timespec *restrict deadline
) {
    static void *pthread_cond_timedwait_found;
    struct timespec copy;
    int is_monotonic = deadline->tv_sec < 1000000000; /* the condition knows its clock, but does not tell */
    const struct timespec *until = is_monotonic ? deadline : for_kernel(deadline, &copy);
    return REAL(pthread_cond_timedwait)(condition, mutex, until);
}

long syscall(long number, ...) {
    static void *syscall_found;
    struct timespec copy;
    long words[6];
    va_list rest;
    va_start(rest, number);
    for (int index = 0; index < 6; index++)
        words[index] = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_futex && words[1] & FUTEX_CLOCK_REALTIME && words[3])
        words[3] = (long)for_kernel((const struct timespec *)words[3], &copy);
    return REAL(syscall)(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}
