/* A library whose constructor registers atfork handlers, as careful libraries do: its lock and what that guards lie in a long block. In every
 * child both must be as the handlers left them. Preloaded beside the heap into a program that forks (order.c with MAIN). */
#include "check.h"

#ifdef MAIN
int main(void)
{
	void (*begin)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "order_begin");
	CHECK(begin, "the library is not there");
	begin();
	usleep(20000);
	for (int i = 0; i < 40; i++) {
		pid_t pid = fork();
		if (pid == 0)
			_exit(0);
		reap(pid);
	}
	puts("ok");
	return 0;
}
#else
static struct {
	pthread_mutex_t lock;
	volatile unsigned long head[2000];
	volatile unsigned long tail[2000];
} *guarded;

static void *count(void *argument)
{
	for (;;) {
		pthread_mutex_lock(&guarded->lock);
		for (int i = 0; i < 2000; i++)
			guarded->head[i]++;
		for (int i = 0; i < 2000; i++)
			guarded->tail[i]++;
		pthread_mutex_unlock(&guarded->lock);
		usleep(50); /* the mutex is not fair */
	}
	return argument;
}

static void before(void)
{
	CHECK(!pthread_mutex_lock(&guarded->lock));
}

static void parent(void)
{
	CHECK(!pthread_mutex_unlock(&guarded->lock));
}

static void child(void)
{
	CHECK(pthread_mutex_trylock(&guarded->lock) == EBUSY, "the lock is not the one that was taken");
	for (int i = 0; i < 2000; i++)
		CHECK(guarded->head[i] == guarded->head[0] && guarded->tail[i] == guarded->head[0], "word %d", i);
	CHECK(!pthread_mutex_unlock(&guarded->lock));
}

__attribute__((constructor)) static void start(void)
{
	CHECK(!pthread_atfork(before, parent, child));
}

/* What it guards comes later, when the heap is there in any case. */
void order_begin(void)
{
	pthread_t t;
	CHECK((guarded = calloc(1, sizeof *guarded)) && ours(guarded));
	CHECK(!pthread_create(&t, NULL, count, NULL));
}
#endif
