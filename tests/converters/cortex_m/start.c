/* SPDX-License-Identifier: Apache-2.0 */
/* What a Cortex-M does after reset: let programs use the floating-point unit, and start newlib. */
extern int __stack;
void _start(void);

void Reset(void) {
  *(volatile unsigned*)0xE000ED88 |= 0xFu << 20;
  __asm__ volatile("dsb; isb");
  _start();
}

__attribute__((section(".vectors"), used)) static void* const vectors[16] = {&__stack,
                                                                             (void*)Reset};
