// The threads that walk lists of operations, and how they share the work.
//
// Threads take an operation's tasks as they get to them, and the next operation begins when all tasks are done. No thread
// waits for one without a task: a thread that has lost its processor, or has not woken yet, finds the others further on and
// catches up. It may even be in a list whose run has ended; so a run keeps the list that is walked, and is not used again
// while a thread is inside.

#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "prefetch.h"
#include "program.h"
#include "vectors/processor.h"

namespace djl {

constexpr int kSpinsBeforeSleep = 20000;  // of a waiting thread: most of a millisecond
constexpr int kTasksPerThread = 4;        // with so many tasks for each thread, work is not cut finer
constexpr int kMaxRowsPerTask = 8;

inline thread_local int thread_index = 0;  // of this thread in its pool; 0 is the calling thread

inline void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

inline void wake_all(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0);
}

// For attention whose walks are divided, see attention.h: room for the partials, and how many of each walk are done.
struct Partials {
    std::vector<float> room;
    std::vector<std::atomic<int>> done;

    explicit Partials(int threads) : done(kTasksPerThread * threads) {}
};

// Tasks from `first` to before `end`.
struct TaskRange {
    int first, end;

    int count() const { return end - first; }
};

// One walk over a list of operations.
struct Run {
    const int threads;
    Partials& partials;
    std::vector<Op> ops;
    std::vector<int> splits;                // for each attention: `splits_of` of attention.h
    std::vector<KvPrefetch> kv_prefetches;  // for each product: see prefetch.h
    StepInputs step{}, late{};
    bool bf16 = false;
    std::atomic<int> inside{0};  // how many of the pool's own threads are in it

    Run(int threads, Partials& partials) : threads(threads), partials(partials) {}

    void begin(const Op* list, int count, const StepInputs& what, const StepInputs& of_wanted, bool is_bf16) {
        ops.assign(list, list + count);
        splits.assign(count, 1);
        kv_prefetches.assign(count, KvPrefetch{});
        step = what;
        late = of_wanted;
        bf16 = is_bf16;
        const size_t counted = (size_t)count * (threads + 1);
        if (counters.size() < counted) counters = std::vector<std::atomic<int>>(counted);
        for (size_t i = 0; i < counted; ++i) counters[i].store(0, std::memory_order_relaxed);
        passed.store(0, std::memory_order_relaxed);
    }

    const StepInputs& step_of(const Op& op) const { return op.head.late ? late : step; }

    bool has_passed(int op) const { return (int)passed.load(std::memory_order_acquire) > op; }

    // Does an operation's tasks together with the other threads; returns when all `count` are done. A late thread may have
    // computed `count` from what later operations have written since, so it checks `has_passed` before each task, after
    // what it has read.
    template <class Work>
    void parallel_for(int op, int count, Work work) {
        std::atomic_thread_fence(std::memory_order_acquire);
        auto& next = counters[op * (threads + 1)];
        int mine = 0;
        for (int task; (task = next.fetch_add(1, std::memory_order_relaxed)) < count && !has_passed(op); ++mine)
            work(task);
        finish(op, mine, count);
    }

    // The same, but each thread begins with its own range of tasks: memory that is read in order arrives faster.
    template <class Work>
    void parallel_for_ordered(int op, int count, Work work) {
        auto begin = [&](int thread) { return (int)((int64_t)count * thread / threads); };
        parallel_for_ranges(op, [&](int thread) { return TaskRange{begin(thread), begin(thread + 1)}; },
                            [&](int task, int) { work(task); });
    }

    // The same for rows, several to a task: taking a task waits until all stores before it are done, and rows are stored to
    // lines that other cores have read.
    template <class Work>
    void parallel_for_rows(int op, int count, Work work) {
        const int per_task = rows_per_task(count);
        parallel_for_ordered(op, (count + per_task - 1) / per_task, [&](int task) {
            for (int row = task * per_task; row < std::min((task + 1) * per_task, count); ++row) work(row);
        });
    }

    // The same for rows in as many pieces as there are threads; each thread begins with its own piece of all rows.
    template <class Work>
    void parallel_for_row_pieces(int op, int count, Work work) {
        const int per_task = rows_per_task(count), tasks = (count + per_task - 1) / per_task;
        parallel_for_ranges(op, [&](int thread) { return TaskRange{tasks * thread, tasks * (thread + 1)}; },
                            [&](int task, int thread) {
            const int first = (task - tasks * thread) * per_task;
            for (int row = first; row < std::min(first + per_task, count); ++row) work(row, thread);
        });
    }

    // The same with the caller's ranges, which have different task numbers; `work` is told whose range a task is of.
    template <class RangeOf, class Work>
    void parallel_for_ranges(int op, RangeOf range_of, Work work) {
        int mine = 0, count = 0;
        for (int i = 0; i < threads; ++i) {
            const int owner = (thread_index + i) % threads;
            const TaskRange range = range_of(owner);
            std::atomic_thread_fence(std::memory_order_acquire);  // as in parallel_for
            count += range.count();
            auto& next = counters[op * (threads + 1) + owner];
            if (next.load(std::memory_order_relaxed) >= range.count()) continue;
            for (int task; (task = range.first + next.fetch_add(1, std::memory_order_relaxed)) < range.end &&
                           !has_passed(op); ++mine)
                work(task, owner);
        }
        finish(op, mine, count);
    }

private:
    int rows_per_task(int rows) const { return std::max(1, std::min(rows / (kTasksPerThread * threads), kMaxRowsPerTask)); }

    std::vector<std::atomic<int>> counters;  // for each operation: the tasks taken of each range, and the tasks done
    std::atomic<uint32_t> passed{0};         // how many operations are done
    std::atomic<int> sleeping{0};            // threads that sleep until another operation is done

    // Spins first: operations are microseconds apart. If the wait is much longer, another thread has lost its processor in
    // the middle of a task, and can go on here while this thread sleeps.
    void finish(int op, int mine, int count) {
        auto& done = counters[op * (threads + 1) + threads];
        if (done.fetch_add(mine, std::memory_order_acq_rel) + mine == count) {
            uint32_t now = passed.load(std::memory_order_relaxed);
            while ((int)now <= op && !passed.compare_exchange_weak(now, op + 1, std::memory_order_seq_cst)) {}
            if (sleeping.load(std::memory_order_seq_cst)) wake_all(passed);
        }
        for (int spins = 0; !has_passed(op); ++spins) {
            pause();
            if (spins < kSpinsBeforeSleep) continue;
            sleeping.fetch_add(1, std::memory_order_seq_cst);
            const uint32_t now = passed.load(std::memory_order_seq_cst);
            if ((int)now <= op) sleep_while(passed, now);
            sleeping.fetch_sub(1, std::memory_order_relaxed);
        }
    }
};

struct Pool {
    const int threads;
    const int follow_spins;  // spins between runs before a thread sleeps
    std::vector<std::thread> others;
    std::atomic<uint32_t> generation{0};  // of runs; odd while one is being prepared
    std::atomic<Run*> current{nullptr};
    std::atomic<bool> stopping{false};
    std::atomic<int> sleeping{0};  // threads that sleep between runs
    Partials partials;
    std::vector<std::unique_ptr<Run>> runs;  // each of the other threads can be late in one; one more is free
    double seconds[kKinds] = {};             // by kind of operation, over all runs, on the calling thread

    Pool(int n, int spins) : threads(n), follow_spins(spins), partials(n) {
        for (int i = 0; i < n; ++i) runs.push_back(std::make_unique<Run>(n, partials));
    }

    // Returns a run that no thread is in and, until `begin`, none can enter.
    Run& prepare() {
        generation.fetch_add(1, std::memory_order_seq_cst);
        while (true)
            for (auto& run : runs)
                if (run->inside.load(std::memory_order_seq_cst) == 0) return *run;
    }

    void begin(Run& run) {
        current.store(&run, std::memory_order_release);
        generation.fetch_add(1, std::memory_order_seq_cst);
        if (sleeping.load(std::memory_order_seq_cst)) wake_all(generation);
    }

    // The loop of each other thread: walks every run that it is in time for.
    template <class Walk>
    void follow(Walk walk) {
        uint32_t seen = 0;
        while (true) {
            uint32_t now;
            for (int spins = 0; (now = generation.load(std::memory_order_acquire)) == seen || now % 2; ++spins) {
                if (spins < follow_spins) pause();
                else {
                    sleeping.fetch_add(1, std::memory_order_seq_cst);
                    sleep_while(generation, now);
                    sleeping.fetch_sub(1, std::memory_order_relaxed);
                }
            }
            if (stopping) return;
            Run* run = current.load(std::memory_order_acquire);
            run->inside.fetch_add(1, std::memory_order_seq_cst);
            // If the generation is still the same, the thread that prepares the next run will see that this one is inside.
            if (generation.load(std::memory_order_seq_cst) == now) {
                seen = now;
                walk(*run);
            }
            run->inside.fetch_sub(1, std::memory_order_release);
        }
    }

    void stop() {
        stopping = true;
        generation.fetch_add(2, std::memory_order_release);
        wake_all(generation);
        for (auto& other : others) other.join();
    }
};

}  // namespace djl
