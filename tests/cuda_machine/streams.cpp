// Streams, events, copies and graphs. Work runs when it is enqueued, or with CUDA_MACHINE_STREAMS=late only when something
// waits for it, or with mixed at any time before: then what is not ordered by an event or a wait comes in another order
// than it was written.
#include "driver.h"
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <set>
#include <vector>

namespace machine {
namespace {

// Memory that a graph allocates, and gives back: it is there as long as the graph, and what was made of it.
struct Memory {
    std::vector<uint64_t> addresses;
    ~Memory() {
        for (uint64_t address : addresses) release(address);
    }
};

struct Graph {
    std::vector<std::function<void()>> work;
    std::shared_ptr<Memory> memory = std::make_shared<Memory>();
};

struct Stream {
    int device;
    bool blocking;
    std::deque<std::function<void()>> queue;
    uint64_t enqueued = 0, done = 0;
    Graph *capture = nullptr;
};

struct Event {
    int device;
    Stream *stream = nullptr;
    uint64_t at = 0;
    Graph *capture = nullptr;
    std::shared_ptr<std::chrono::steady_clock::time_point> time;
};

// Each device has default streams of its own.
struct Defaults : std::vector<Stream> {
    Defaults() {
        for (int on = 0; on < DEVICES; ++on) push_back({on, true, {}});
    }
};

std::set<Stream *> streams; // that were created
Defaults legacies, per_threads;

Stream &legacy() {
    return legacies[(size_t)std::max(device(), 0)];
}

Stream &per_thread() {
    return per_threads[(size_t)std::max(device(), 0)];
}

bool streams_are(const char *how) {
    const char *text = getenv("CUDA_MACHINE_STREAMS");
    return text && !strcmp(text, how);
}

Stream *find(void *handle) {
    if ((uintptr_t)handle <= 1) return &legacy();
    return (uintptr_t)handle == 2 ? &per_thread() : (Stream *)handle;
}

void run_to(Stream *stream, uint64_t at) {
    while (stream->done < at && !stream->queue.empty()) {
        auto work = std::move(stream->queue.front());
        stream->queue.pop_front();
        work();
        ++stream->done;
    }
}

// Some of what is enqueued, on streams of any device.
void run_some() {
    static std::mt19937 random(atoi(getenv("CUDA_MACHINE_SEED") ? getenv("CUDA_MACHINE_SEED") : "1"));
    std::vector<Stream *> waiting;
    for (auto *defaults : {&legacies, &per_threads})
        for (Stream &stream : *defaults)
            if (!stream.queue.empty()) waiting.push_back(&stream);
    for (Stream *stream : streams)
        if (!stream->queue.empty()) waiting.push_back(stream);
    if (waiting.empty() || random() % 2) return;
    Stream *stream = waiting[random() % waiting.size()];
    run_to(stream, stream->done + 1 + random() % 3);
}

void put(Stream *stream, std::function<void()> work) {
    ++stream->enqueued;
    stream->queue.push_back(std::move(work));
}

void follow(Stream *stream, Stream *other) {
    if (stream != other && other->done < other->enqueued) {
        const uint64_t at = other->enqueued;
        put(stream, [=] { run_to(other, at); });
    }
}

// A copy takes what is not pinned at once, and is over at once when it goes there, as the driver's copies are.
int copy(void *stream, void *to, const void *from, size_t size, bool to_host, bool from_host) {
    if (from_host && !pinned(from)) {
        auto staged = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + size);
        return enqueue(stream, "copy", [=] { memcpy(to, staged->data(), size); });
    }
    const int status = enqueue(stream, "copy", [=] { memcpy(to, from, size); });
    if (to_host && !pinned(to)) run_to(find(stream), find(stream)->enqueued);
    return status;
}

} // namespace

int enqueue_free(void *handle, uint64_t address) {
    if (Graph *capture = find(handle)->capture) return capture->memory->addresses.push_back(address), 0;
    const int on = device();
    return enqueue(handle, "free", [=] { note(on, release(address), "cuMemFreeAsync: not allocated"); });
}

int enqueue(void *handle, const char *, std::function<void()> work) {
    if (device() < 0) return 201;
    Stream *stream = find(handle);
    if (stream->device != device()) return 400; // another context's
    if (stream->capture) return stream->capture->work.push_back(std::move(work)), 0;
    if (stream == &legacy()) {
        for (Stream *other : streams)
            if (other->blocking && other->device == stream->device) follow(stream, other);
        follow(stream, &per_thread());
    } else if (stream->blocking) {
        follow(stream, &legacy());
    }
    put(stream, std::move(work));
    if (streams_are("mixed"))
        run_some();
    else if (!streams_are("late"))
        run_to(stream, stream->enqueued);
    return 0;
}

// What was enqueued on a device, and what that waits for.
void finish_all(int on) {
    for (Stream *stream : {&legacies[(size_t)on], &per_threads[(size_t)on]}) run_to(stream, stream->enqueued);
    for (Stream *stream : streams)
        if (stream->device == on) run_to(stream, stream->enqueued);
}

} // namespace machine

using namespace machine;

API cuStreamCreate(Stream **stream, unsigned flags) {
    ENTER(" ");
    if (device() < 0) return 201;
    *stream = new Stream{device(), !(flags & 1), {}};
    streams.insert(*stream);
    return 0;
}
API cuStreamCreateWithPriority(Stream **stream, unsigned flags, int) {
    return cuStreamCreate(stream, flags);
}
API cuStreamDestroy_v2(Stream *stream) {
    ENTER(" ");
    run_to(stream, stream->enqueued);
    streams.erase(stream); // not freed: events may tell of it
    return 0;
}
API cuStreamSynchronize(void *handle) {
    ENTER(" %p", handle);
    Stream *stream = find(handle);
    if (stream->capture) return 900;
    if (stream == &legacy()) finish_all(stream->device);
    run_to(stream, stream->enqueued);
    return told();
}
API cuStreamQuery(void *handle) {
    ENTER(" %p", handle);
    Stream *stream = find(handle);
    run_to(stream, stream->done + 1); // so that who asks again and again gets there
    if (fault().status) return told();
    return stream->done == stream->enqueued ? 0 : 600;
}
API cuCtxSynchronize() {
    ENTER(" ");
    if (device() < 0) return 201;
    finish_all(device());
    return told();
}
API cuStreamGetCtx(void *, void **context) {
    ENTER(" ");
    *context = (void *)(uintptr_t)(device() + 1);
    return 0;
}

API cuEventCreate(Event **event, unsigned) {
    ENTER(" ");
    if (device() < 0) return 201;
    *event = new Event{device()};
    return 0;
}
API cuEventDestroy_v2(Event *event) {
    ENTER(" ");
    delete event;
    return 0;
}
API cuEventRecord(Event *event, void *handle) {
    ENTER(" %p", handle);
    Stream *stream = find(handle);
    if (event->device != stream->device) return 400;
    if (stream->capture) return event->capture = stream->capture, 0;
    auto time = std::make_shared<std::chrono::steady_clock::time_point>();
    event->time = time;
    event->capture = nullptr;
    const int status = enqueue(handle, "event", [=] { *time = std::chrono::steady_clock::now(); });
    event->stream = stream;
    event->at = stream->enqueued;
    return status;
}
API cuStreamWaitEvent(void *handle, Event *event, unsigned) {
    ENTER(" %p", handle);
    Stream *stream = find(handle);
    if (event->capture) return stream->capture = event->capture, 0;
    if (!event->stream) return 0;
    Stream *other = event->stream;
    const uint64_t at = event->at;
    return enqueue(handle, "wait", [=] { run_to(other, at); });
}
API cuEventSynchronize(Event *event) {
    ENTER(" ");
    if (event->stream) run_to(event->stream, event->at);
    return told();
}
API cuEventQuery(Event *event) {
    ENTER(" ");
    if (event->stream) run_to(event->stream, std::min(event->stream->done + 1, event->at));
    if (fault().status) return told();
    return !event->stream || event->stream->done >= event->at ? 0 : 600;
}
API cuEventElapsedTime(float *milliseconds, Event *begin, Event *end) {
    ENTER(" ");
    if (!begin->stream || !end->stream) return 400;
    if (begin->stream->done < begin->at || end->stream->done < end->at) return 600;
    *milliseconds = std::chrono::duration<float, std::milli>(*end->time - *begin->time).count();
    return 0;
}
API cuEventElapsedTime_v2(float *milliseconds, Event *begin, Event *end) {
    return cuEventElapsedTime(milliseconds, begin, end);
}

API cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t size, void *stream) {
    ENTER(" %zu, stream %p", size, stream);
    return copy(stream, to, from, size, false, true);
}
API cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t size, void *stream) {
    ENTER(" %zu, stream %p", size, stream);
    return copy(stream, to, from, size, true, false);
}
API cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t size, void *stream) {
    ENTER(" %zu, stream %p", size, stream);
    if (!near(to, device()) || !near(from, device())) return 1;
    return copy(stream, to, from, size, false, false);
}
API cuMemcpyHtoD_v2(void *to, const void *from, size_t size) {
    ENTER(" %zu", size);
    copy(nullptr, to, from, size, false, true);
    run_to(&legacy(), legacy().enqueued);
    return told();
}
API cuMemcpyDtoH_v2(void *to, const void *from, size_t size) {
    ENTER(" %zu", size);
    copy(nullptr, to, from, size, true, false);
    run_to(&legacy(), legacy().enqueued);
    return told();
}
struct Side {
    size_t x, y;
    unsigned kind; // 1 host, 2 device
    char *host, *device;
    void *array;
    size_t pitch;
    char *begin() const {
        return (kind == 1 ? host : device) + y * pitch + x;
    }
};
struct Copy2D {
    Side from, to;
    size_t width, height;
};
API cuMemcpy2DAsync_v2(const Copy2D *c, void *stream) {
    ENTER(" %zu x %zu, stream %p", c->width, c->height, stream);
    char *to = c->to.begin(), *from = c->from.begin();
    if (!near(to, device()) || !near(from, device())) return 1;
    const size_t width = c->width, height = c->height, in = c->from.pitch, out = c->to.pitch;
    if (width > in || width > out) return 1;
    auto rows = [=](const char *source, size_t pitch) {
        for (size_t y = 0; y < height; ++y) memcpy(to + y * out, source + y * pitch, width);
    };
    if (c->from.kind == 1 && !pinned(from)) {
        auto staged = std::make_shared<std::vector<char>>(width * height);
        for (size_t y = 0; y < height; ++y) memcpy(staged->data() + y * width, from + y * in, width);
        return enqueue(stream, "copy", [=] { rows(staged->data(), width); });
    }
    const int status = enqueue(stream, "copy", [=] { rows(from, in); });
    if (c->to.kind == 1 && !pinned(to)) run_to(find(stream), find(stream)->enqueued);
    return status;
}
API cuMemsetD32Async(unsigned *to, unsigned value, size_t count, void *stream) {
    ENTER(" %zu, stream %p", count, stream);
    return enqueue(stream, "set", [=] {
        for (size_t i = 0; i < count; ++i) to[i] = value;
    });
}
API cuMemsetD8Async(unsigned char *to, unsigned char value, size_t count, void *stream) {
    ENTER(" %zu, stream %p", count, stream);
    return enqueue(stream, "set", [=] { memset(to, value, count); });
}

API cuLaunchHostFunc(void *stream, void (*function)(void *), void *data) {
    ENTER(" stream %p", stream);
    return enqueue(stream, "host function", [=] { function(data); });
}

API cuStreamIsCapturing(void *handle, int *status) {
    ENTER(" ");
    *status = find(handle)->capture != nullptr;
    return 0;
}
API cuStreamBeginCapture_v2(void *handle, int) {
    ENTER(" %p", handle);
    if ((uintptr_t)handle <= 1) return 900;
    find(handle)->capture = new Graph;
    return 0;
}
API cuStreamEndCapture(void *handle, Graph **graph) {
    ENTER(" %p", handle);
    *graph = find(handle)->capture;
    if (!*graph) return 901;
    for (Stream *stream : streams)
        if (stream->capture == *graph) stream->capture = nullptr;
    for (Stream &stream : per_threads)
        if (stream.capture == *graph) stream.capture = nullptr;
    return 0;
}
API cuGraphInstantiateWithFlags(Graph **made, Graph *graph, unsigned long long) {
    ENTER(" ");
    *made = new Graph(*graph);
    return 0;
}
API cuGraphLaunch(Graph *graph, void *stream) {
    ENTER(" stream %p", stream);
    return enqueue(stream, "graph", [work = graph->work, memory = graph->memory] {
        for (const auto &each : work) each();
    });
}
API cuGraphExecDestroy(Graph *graph) {
    ENTER(" ");
    delete graph;
    return 0;
}
API cuGraphDestroy(Graph *graph) {
    ENTER(" ");
    delete graph;
    return 0;
}
