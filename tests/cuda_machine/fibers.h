// Threads of a GPU as fibers of one CPU thread: a stack each, and a switch that saves what the ABI says must survive.
#pragma once
#include <cstddef>
#include <cstdint>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>
#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace machine {

struct Context {
#ifdef __x86_64__
    void *stack_pointer = nullptr;
#else
    ucontext_t saved;
#endif
};

#ifdef __x86_64__
extern "C" void machine_switch(Context *from, Context *to);
#ifdef MACHINE_SWITCH // in one of the files that include this
asm(R"(
.text
.globl machine_switch
.hidden machine_switch
.type machine_switch, @function
machine_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size machine_switch, .-machine_switch
.section .note.GNU-stack,"",@progbits
.text
)");
#endif
#else
inline void machine_switch(Context *from, Context *to) {
    swapcontext(&from->saved, &to->saved);
}
#endif

constexpr size_t STACK = 256 << 10;

// A stack with a page below it that nobody may touch.
inline char *new_stack() {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *memory =
        mmap(nullptr, STACK + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    mprotect(memory, page, PROT_NONE);
    return (char *)memory + page;
}

// `context` will begin with start(), which never returns. Tops of stacks that lie at the same place in their pages would
// share the same few lines of the cache: they begin `line` lines further down.
inline void prepare(Context &context, char *stack, unsigned line, void (*start)()) {
#ifdef __x86_64__
    void **top =
        (void **)(stack + STACK - 64 * (line + 1)); // 16-byte aligned; after `ret` it is 8 off, as after a call
    *--top = nullptr;
    *--top = (void *)start;
    for (int i = 0; i < 6; ++i) *--top = nullptr;
    context.stack_pointer = top;
#else
    (void)line;
    getcontext(&context.saved);
    context.saved.uc_stack.ss_sp = stack;
    context.saved.uc_stack.ss_size = STACK;
    context.saved.uc_link = nullptr;
    makecontext(&context.saved, start, 0);
#endif
}

} // namespace machine
