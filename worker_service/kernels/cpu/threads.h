// A pool of hot threads for kernels: parallel_for shares numbered tasks among them and the caller.
//
// Tasks are taken one by one from a shared counter, so a thread the system does not run holds
// nothing up: the caller does what nobody else has begun. Idle threads spin for tens of
// microseconds, give way for some more, then sleep. One parallel_for runs at a time; a second one
// meanwhile (another thread of this process, or a nested one) is done by its caller alone.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace stepwire {

// Threads that work on a parallel_for, the caller included. Starts what is missing.
void set_num_threads(int num_threads);
int num_threads();

using Task = void (*)(void* context, int64_t index);
void run_tasks(int64_t num_tasks, Task task, void* context);

// Calls body(0) ... body(num_tasks - 1), each once, in any order, and returns when all are done.
// The body must not throw.
template <typename Body>
void parallel_for(int64_t num_tasks, const Body& body) {
  run_tasks(
      num_tasks,
      [](void* context, int64_t index) { (*static_cast<const Body*>(context))(index); },
      const_cast<Body*>(&body));
}

// The same for tasks that follow one another in memory: each thread takes a run of them in order,
// from the front, and then what is left of the others' runs.
template <typename Body>
void parallel_for_runs(int64_t num_tasks, const Body& body) {
  struct alignas(64) Run {
    std::atomic<int64_t> next;
    int64_t end;
  };
  constexpr int64_t kMostRuns = 64;
  Run runs[kMostRuns];
  const int64_t num_runs = std::min<int64_t>(num_threads(), kMostRuns);
  for (int64_t r = 0; r < num_runs; ++r) {
    runs[r].next.store(num_tasks * r / num_runs, std::memory_order_relaxed);
    runs[r].end = num_tasks * (r + 1) / num_runs;
  }
  parallel_for(num_runs, [&](int64_t own) {
    for (int64_t r = 0; r < num_runs; ++r) {
      Run& run = runs[(own + r) % num_runs];
      for (int64_t i; (i = run.next.fetch_add(1, std::memory_order_relaxed)) < run.end;) body(i);
    }
  });
}

// Runs so many jobs of changing sizes back to back and returns how many of them did not run each
// task once. For tests: from Python, jobs never follow each other as fast as within a kernel.
int64_t count_wrong_jobs(int64_t num_jobs);

}  // namespace stepwire
