// What the parts of the emulated libcuda share.
#pragma once
#include "run.h"
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace machine {

struct Fault {
    int status = 0;
    std::string report;
};

constexpr int DEVICES = 16; // at most

extern std::recursive_mutex mutex;

int enter(const char *function, const char *format, ...) __attribute__((format(printf, 2, 3)));
Fault &fault();
int told();
void note(int on, int status, const std::string &report);
int device(); // the current context's, or -1
bool near(const void *pointer, int on);
bool pinned(const void *pointer); // or on a device: what asynchronous copies do not stage
int release(uint64_t address);

int enqueue(void *stream, const char *what, std::function<void()> work);
int enqueue_free(void *stream, uint64_t address);
void finish_all(int on);

} // namespace machine

#define API extern "C" __attribute__((visibility("default"))) int
#define LOCK std::lock_guard<std::recursive_mutex> guard(machine::mutex)
#define ENTER(...) \
    LOCK;          \
    if (const int failed = machine::enter(__func__, __VA_ARGS__)) return failed
