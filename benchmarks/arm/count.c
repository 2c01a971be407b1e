/* A plugin for QEMU's user mode emulation. It counts the instructions that a single-threaded program executes between
 * `mov x11, x11` and `mov x12, x12`, and prints the count. It counts translation blocks of QEMU as wholes: the block
 * with the first mark is left out, and the block with the second mark counts completely. This file declares the few
 * functions of QEMU's plugin interface, version 1, that it calls. Therefore QEMU's headers are not required. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
typedef uint64_t plugin_id;
struct block;
struct instruction;
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct block *));
extern void qemu_plugin_register_vcpu_tb_exec_cb(struct block *, void (*)(unsigned, void *), int flags, void *);
extern void qemu_plugin_register_vcpu_insn_exec_cb(struct instruction *, void (*)(unsigned, void *), int flags, void *);
extern void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
extern size_t qemu_plugin_tb_n_insns(const struct block *);
extern struct instruction *qemu_plugin_tb_get_insn(const struct block *, size_t index);
extern const void *qemu_plugin_insn_data(const struct instruction *);
extern void qemu_plugin_outs(const char *);

EXPORT int qemu_plugin_version = 1;

enum { START = 0xAA0B03EB, STOP = 0xAA0C03EC };
static int counting;
static uint64_t executed;

static void start(unsigned cpu, void *data) {
    (void)cpu, (void)data;
    counting = 1;
}

static void stop(unsigned cpu, void *data) {
    (void)cpu, (void)data;
    counting = 0;
}

static void count(unsigned cpu, void *instructions) {
    (void)cpu;
    if (counting) executed += (uintptr_t)instructions;
}

static void translated(plugin_id id, struct block *block) {
    const size_t instructions = qemu_plugin_tb_n_insns(block);
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_cb(block, count, 0, (void *)(uintptr_t)instructions);
    for (size_t i = 0; i < instructions; i++) {
        struct instruction *one = qemu_plugin_tb_get_insn(block, i);
        uint32_t code;
        memcpy(&code, qemu_plugin_insn_data(one), sizeof code);
        if (code == (uint32_t)START) qemu_plugin_register_vcpu_insn_exec_cb(one, start, 0, NULL);
        if (code == (uint32_t)STOP) qemu_plugin_register_vcpu_insn_exec_cb(one, stop, 0, NULL);
    }
}

static void finished(plugin_id id, void *data) {
    char text[32];
    (void)id, (void)data;
    snprintf(text, sizeof text, "executed %llu\n", (unsigned long long)executed);
    qemu_plugin_outs(text);
}

EXPORT int qemu_plugin_install(plugin_id id, const void *info, int count_of_words, char **words) {
    (void)info, (void)count_of_words, (void)words;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, finished, NULL);
    return 0;
}
