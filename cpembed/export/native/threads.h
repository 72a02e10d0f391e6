/* The threads of a library's handle, and what kernels call: parallel loops, memory, errors.

   A loop's tasks are dealt out as shares, one for each thread, always the same ones, so that a
   thread finds in its caches what it wrote before. The calling thread has the first share, and
   takes those that nobody has begun when it is done: a thread that sleeps, or that the machine is
   too busy to run, holds nobody up. Threads spin briefly for the next loop before they sleep. One
   call runs at a time on a handle. */

#define MOST_THREADS 1024
#define MOST_BLOCKS 16
#define SPIN_NS 50000

typedef struct { void *sync; int32_t tasks; } Group;
typedef int (*Task)(int number, Group *group, void *data);
typedef struct { void *memory; size_t bytes; int taken; } Block;

typedef struct {
  int threads, rooms; /* `rooms`: threads when it was opened, which have blocks */
  int forks;
  pthread_t ids[MOST_THREADS];
  int started;
  Task task;
  void *data;
  int32_t tasks;
  /* What threads look at, and what they write, in lines of their own. */
  _Alignas(64) _Atomic uint64_t launched; /* the number of the loop << 32 | its shares */
  _Atomic int stop;
  _Alignas(64) _Atomic int32_t finished, failed, arrived;
  _Alignas(64) _Atomic int32_t sleeping, waiting;
  _Atomic uint32_t *claimed; /* of each share: the last loop of which it was begun */
  pthread_mutex_t lock;
  pthread_cond_t wake, done;
  Block (*blocks)[MOST_BLOCKS]; /* of each thread: memory that kernels ask for */
  char error[256];
} Pool;

typedef struct { Pool *pool; int number; } Start;

/* How often this process was forked off since the library was loaded. */
static int forks;
static pthread_once_t watched = PTHREAD_ONCE_INIT;
static void forked(void) { forks++; }
static void watch_forks(void) { pthread_atfork(NULL, NULL, forked); }

static _Thread_local Pool *current;
static _Thread_local int own_number, inside;

static void pause_briefly(void) {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  __asm__ __volatile__("yield");
#endif
}

static int64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Begin a share of a loop; 0 where another thread has. The loop of a thread that comes late may be
   over: then every share of it was begun, and perhaps those of later ones. */
static int claim(Pool *pool, int share, uint32_t loop) {
  uint32_t last = atomic_load(&pool->claimed[share]);
  while ((int32_t)(loop - last) > 0)
    if (atomic_compare_exchange_weak(&pool->claimed[share], &last, loop)) return 1;
  return 0;
}

/* Share s is the tasks s, s + threads, ... Only who has claimed it reads what the loop is: it is not
   over, and nobody writes the next one, before the share is finished. */
static void work(Pool *pool, int share) {
  Group group = {pool, pool->tasks};
  inside = 1;
  for (int32_t task = share; task < pool->tasks; task += pool->threads)
    if (pool->task(task, &group, pool->data) != 0) atomic_store(&pool->failed, 1);
  inside = 0;
}

/* Whether a brief spin ends with a loop after `seen`. */
static int comes(Pool *pool, uint32_t seen) {
  int64_t end = 0;
  for (;;) {
    for (int look = 0; look < 64; look++) {
      if (atomic_load(&pool->launched) >> 32 != seen) return 1;
      pause_briefly();
    }
    int64_t now = now_ns();
    if (end == 0) end = now + SPIN_NS;
    if (now >= end) return 0;
  }
}

static void *thread_main(void *argument) {
  Start start = *(Start *)argument;
  Pool *pool = start.pool;
  free(argument);
  current = pool;
  own_number = start.number;
  uint32_t seen = 0;
  for (;;) {
    if (!comes(pool, seen)) {
      pthread_mutex_lock(&pool->lock);
      atomic_fetch_add(&pool->sleeping, 1);
      while (atomic_load(&pool->launched) >> 32 == seen)
        pthread_cond_wait(&pool->wake, &pool->lock);
      atomic_fetch_sub(&pool->sleeping, 1);
      pthread_mutex_unlock(&pool->lock);
    }
    uint64_t launched = atomic_load(&pool->launched);
    seen = (uint32_t)(launched >> 32);
    if (atomic_load(&pool->stop)) return NULL;
    int32_t shares = (int32_t)(uint32_t)launched;
    if (start.number >= shares || !claim(pool, start.number, seen)) continue;
    work(pool, start.number);
    if (atomic_fetch_add(&pool->finished, 1) == shares - 1 && atomic_load(&pool->waiting)) {
      pthread_mutex_lock(&pool->lock);
      pthread_cond_signal(&pool->done);
      pthread_mutex_unlock(&pool->lock);
    }
  }
}

/* Publish the next loop, of so many shares; its number. */
static uint32_t launch(Pool *pool, int32_t shares) {
  uint32_t loop = (uint32_t)(atomic_load(&pool->launched) >> 32) + 1;
  atomic_store(&pool->launched, (uint64_t)loop << 32 | (uint32_t)shares);
  if (atomic_load(&pool->sleeping) > 0) {
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->lock);
  }
  return loop;
}

static void wait_for(Pool *pool, int32_t shares) {
  int64_t end = 0;
  for (;;) {
    for (int look = 0; look < 64; look++) {
      if (atomic_load(&pool->finished) == shares) return;
      pause_briefly();
    }
    int64_t now = now_ns();
    if (end == 0) end = now + SPIN_NS;
    if (now >= end) break;
  }
  pthread_mutex_lock(&pool->lock);
  atomic_store(&pool->waiting, 1);
  while (atomic_load(&pool->finished) != shares) pthread_cond_wait(&pool->done, &pool->lock);
  atomic_store(&pool->waiting, 0);
  pthread_mutex_unlock(&pool->lock);
}

/* Called by kernels. A loop inside a task is executed by the thread that meets it. */
int TVMBackendParallelLaunch(Task task, void *data, int tasks) {
  Pool *pool = current;
  if (tasks <= 0) tasks = pool->threads;
  if (inside || pool->threads == 1 || tasks == 1) {
    /* Nobody else takes part: a barrier has nobody to wait for. */
    Group group = {NULL, tasks};
    int failed = 0, before = inside;
    inside = 1;
    for (int32_t number = 0; number < tasks; number++) failed |= task(number, &group, data) != 0;
    inside = before;
    return failed ? -1 : 0;
  }
  int32_t shares = tasks < pool->threads ? tasks : pool->threads;
  pool->task = task;
  pool->data = data;
  pool->tasks = tasks;
  atomic_store(&pool->failed, 0);
  atomic_store(&pool->arrived, 0);
  atomic_store(&pool->finished, 0);
  uint32_t loop = launch(pool, shares);
  for (int32_t share = 0; share < shares; share++)
    if (claim(pool, share, loop)) {
      work(pool, share);
      atomic_fetch_add(&pool->finished, 1);
    }
  wait_for(pool, shares);
  return atomic_load(&pool->failed) ? -1 : 0;
}

/* All tasks of a loop wait for each other. A thread that waits takes no other share, so that every
   share is begun where there are not more tasks than threads. */
int TVMBackendParallelBarrier(int number, Group *group) {
  Pool *pool = group->sync;
  (void)number;
  if (pool == NULL) return group->tasks > 1 ? -1 : 0;
  if (group->tasks > pool->threads) return -1;
  int32_t turn = atomic_fetch_add(&pool->arrived, 1) / group->tasks;
  while (atomic_load(&pool->arrived) / group->tasks == turn) sched_yield();
  return 0;
}

void *TVMBackendAllocWorkspace(int type, int id, uint64_t bytes, int code, int bits) {
  Block *blocks = current->blocks[own_number], *found = NULL;
  (void)type, (void)id, (void)code, (void)bits;
  for (int k = 0; k < MOST_BLOCKS; k++)
    if (!blocks[k].taken && (found == NULL || blocks[k].bytes > found->bytes)) found = &blocks[k];
  if (found == NULL) return NULL;
  if (found->bytes < bytes) {
    size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    free(found->memory);
    found->memory = aligned_alloc(ALIGNMENT, rounded);
    found->bytes = found->memory == NULL ? 0 : rounded;
    if (found->memory == NULL) return NULL;
  }
  found->taken = 1;
  return found->memory;
}

int TVMBackendFreeWorkspace(int type, int id, void *memory) {
  Block *blocks = current->blocks[own_number];
  (void)type, (void)id;
  for (int k = 0; k < MOST_BLOCKS; k++)
    if (blocks[k].taken && blocks[k].memory == memory) {
      blocks[k].taken = 0;
      return 0;
    }
  return -1;
}

/* Why a kernel refuses its arguments, which the calling thread checks. */
void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  size_t used = 0, room = sizeof current->error;
  (void)kind;
  if (own_number != 0) return;
  current->error[0] = 0;
  for (int32_t k = 0; k < count && used < room; k++) {
    int more = snprintf(current->error + used, room - used, "%s", parts[k] ? parts[k] : "");
    used += more > 0 ? (size_t)more : 0;
  }
}

void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message) {
  TVMFFIErrorSetRaisedFromCStrParts(kind, &message, 1);
}

/* Kernels call these by pointers, of which they bring weak ones; TVM's own loader sets them. */
void *__TVMBackendAllocWorkspace = (void *)TVMBackendAllocWorkspace;
void *__TVMBackendFreeWorkspace = (void *)TVMBackendFreeWorkspace;
void *__TVMBackendParallelLaunch = (void *)TVMBackendParallelLaunch;
void *__TVMBackendParallelBarrier = (void *)TVMBackendParallelBarrier;
void *__TVMFFIErrorSetRaisedFromCStr = (void *)TVMFFIErrorSetRaisedFromCStr;

/* In a forked child the pool is the calling thread's alone: its threads, and whoever held its lock
   or waited, stayed behind. */
static void adopt(Pool *pool) {
  if (pool->forks == forks) return;
  pool->forks = forks;
  pool->threads = 1;
  pool->started = 0;
  atomic_store(&pool->sleeping, 0);
  atomic_store(&pool->waiting, 0);
  pthread_mutex_init(&pool->lock, NULL);
  pthread_cond_init(&pool->wake, NULL);
  pthread_cond_init(&pool->done, NULL);
  inside = 0;
  for (int k = 0; k < MOST_BLOCKS; k++) pool->blocks[0][k].taken = 0;
}

static void pool_close(Pool *pool) {
  adopt(pool);
  if (pool->started > 0) {
    atomic_store(&pool->stop, 1);
    launch(pool, 0);
    for (int k = 0; k < pool->started; k++) pthread_join(pool->ids[k], NULL);
  }
  pthread_cond_destroy(&pool->wake);
  pthread_cond_destroy(&pool->done);
  pthread_mutex_destroy(&pool->lock);
  for (int t = 0; pool->blocks != NULL && t < pool->rooms; t++)
    for (int k = 0; k < MOST_BLOCKS; k++) free(pool->blocks[t][k].memory);
  free(pool->blocks);
  free(pool->claimed);
}

static int pool_open(Pool *pool, int threads) {
  if (threads <= 0) {
    cpu_set_t cores;
    threads = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
  }
  pthread_once(&watched, watch_forks);
  pool->forks = forks;
  pool->threads = pool->rooms = threads < MOST_THREADS ? threads : MOST_THREADS;
  pthread_mutex_init(&pool->lock, NULL);
  pthread_cond_init(&pool->wake, NULL);
  pthread_cond_init(&pool->done, NULL);
  pool->blocks = calloc((size_t)pool->threads, sizeof *pool->blocks);
  pool->claimed = calloc((size_t)pool->threads, sizeof *pool->claimed);
  if (pool->blocks == NULL || pool->claimed == NULL) return CPEMBED_OUT_OF_MEMORY;
  for (int number = 1; number < pool->threads; number++) {
    Start *start = malloc(sizeof *start);
    if (start == NULL) return CPEMBED_OUT_OF_MEMORY;
    *start = (Start){pool, number};
    if (pthread_create(&pool->ids[pool->started], NULL, thread_main, start) != 0) {
      free(start);
      return CPEMBED_NO_THREADS;
    }
    pool->started++;
  }
  return CPEMBED_OK;
}
