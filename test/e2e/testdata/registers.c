// Counts how often vector registers are not what a thread has put into them, while other
// threads of the process sleep and wake. The argument is for how many seconds.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static unsigned char before[16][16] __attribute__((aligned(16)));
static unsigned char after[16][16] __attribute__((aligned(16)));

static void *sleep_and_wake(void *unused) {
  for (;;) {
    struct timespec t = {0, 5000000};
    nanosleep(&t, 0);
  }
}

#define LOAD(r) "movdqa " #r "*16(%1), %%xmm" #r "\n"
#define STORE(r) "movdqa %%xmm" #r ", " #r "*16(%2)\n"
#define ALL(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11) f(12) f(13) f(14) f(15)

int main(int argc, char **argv) {
  int rounds = 0, bad = 0;
  time_t end = time(0) + atoi(argv[1]);
  pthread_t t;
  for (int i = 0; i < 2; i++) pthread_create(&t, 0, sleep_and_wake, 0);
  for (size_t i = 0; i < sizeof before; i++) ((unsigned char *)before)[i] = i * 7 + 1;
  while (time(0) < end) {
    long n = 100000000;
    __asm__ volatile(ALL(LOAD) "1: dec %0\njnz 1b\n" ALL(STORE)
                     : "+r"(n)
                     : "r"(before), "r"(after)
                     : "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                       "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
    rounds++;
    bad += memcmp(before, after, sizeof before) != 0;
  }
  printf("%d of %d rounds\n", bad, rounds);
  return bad != 0;
}
