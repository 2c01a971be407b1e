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

extern std::recursive_mutex mutex;
extern Fault fault;

int enter(const char *function, const char *format, ...) __attribute__((format(printf, 2, 3)));
int told();
void note(int status, const std::string &report);
int device();
bool pinned(const void *pointer); // or on a device: what asynchronous copies do not stage
int release(uint64_t address);

int enqueue(void *stream, const char *what, std::function<void()> work);
int enqueue_free(void *stream, uint64_t address);
void finish_all();

} // namespace machine

#define API extern "C" __attribute__((visibility("default"))) int
#define LOCK std::lock_guard<std::recursive_mutex> guard(machine::mutex)
#define ENTER(...) \
    LOCK;          \
    if (const int failed = machine::enter(__func__, __VA_ARGS__)) return failed
