#include "threads.h"

#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "isa.h"

namespace stepwire {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kSpin = std::chrono::microseconds(30);
constexpr auto kGiveWay = std::chrono::microseconds(150);
constexpr int64_t kMostTasks = (int64_t{1} << 32) - 1;

void pause_briefly() {
#if STEPWIRE_X86
  for (int i = 0; i < 8; ++i) _mm_pause();
#endif
}

// Waits until is_ready() holds: spinning, then giving way. False when it gave up.
template <typename Ready>
bool spin_until(Ready&& is_ready) {
  const auto start = Clock::now();
  for (;;) {
    for (int i = 0; i < 16; ++i) {
      if (is_ready()) return true;
      pause_briefly();
    }
    const auto waited = Clock::now() - start;
    if (waited > kGiveWay) return false;
    if (waited > kSpin) sched_yield();
  }
}

class Pool {
 public:
  int size() const { return size_.load(std::memory_order_relaxed); }

  void resize(int num_threads) {
    while (has_caller_.exchange(true)) sched_yield();
    for (; num_started_ < num_threads - 1; ++num_started_)
      std::thread([this, index = num_started_ + 1] { serve(index); }).detach();
    size_.store(num_threads, std::memory_order_relaxed);
    has_caller_.store(false);
  }

  void run(int64_t num_tasks, Task task, void* context) {
    if (num_tasks < 2 || num_tasks > kMostTasks || size() < 2 || has_caller_.exchange(true)) {
      for (int64_t i = 0; i < num_tasks; ++i) task(context, i);
      return;
    }
    // Closed while the job is written: a thread still looking at the last one, which has no task
    // left by its own count, would find one by the count of this.
    const uint64_t closed = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    ticket_.store(closed << 32 | kMostTasks);
    task_.store(task, std::memory_order_release);
    context_.store(context, std::memory_order_release);
    num_tasks_.store(num_tasks, std::memory_order_release);
    num_unfinished_.store(num_tasks, std::memory_order_release);
    const uint64_t job = closed + 1;
    ticket_.store(job << 32);
    if (num_sleeping_.load() > 0) {
      std::lock_guard<std::mutex> lock(sleep_);
      wake_.notify_all();
    }
    work_on(job);
    const auto is_done = [this] { return num_unfinished_.load(std::memory_order_acquire) == 0; };
    while (!spin_until(is_done)) sched_yield();
    has_caller_.store(false);
  }

 private:
  // Takes tasks of the job until none is left. The ticket holds the job above and the next task
  // below: what was read of a job is right if the ticket has not changed when the task is taken,
  // since the ticket changes before anything else of a job does.
  void work_on(uint64_t job) {
    uint64_t ticket = ticket_.load();
    while (ticket >> 32 == job) {
      const Task task = task_.load(std::memory_order_acquire);
      void* const context = context_.load(std::memory_order_acquire);
      const int64_t num_tasks = num_tasks_.load(std::memory_order_acquire);
      const int64_t index = static_cast<int64_t>(ticket & 0xffffffff);
      if (index >= num_tasks) return;
      if (!ticket_.compare_exchange_weak(ticket, ticket + 1)) continue;
      task(context, index);
      num_unfinished_.fetch_sub(1, std::memory_order_release);
      ticket = ticket_.load();
    }
  }

  void serve(int index) {
    uint64_t seen = 0;
    const auto has_job = [&] { return ticket_.load() >> 32 != seen; };
    for (;;) {
      if (!spin_until(has_job)) {
        std::unique_lock<std::mutex> lock(sleep_);
        num_sleeping_.fetch_add(1);
        wake_.wait(lock, has_job);
        num_sleeping_.fetch_sub(1);
      }
      seen = ticket_.load() >> 32;
      if (index < size()) work_on(seen);
    }
  }

  std::atomic<bool> has_caller_{false};  // whom the members below serve
  std::atomic<int> size_{1};
  int num_started_ = 0;

  std::atomic<Task> task_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<int64_t> num_tasks_{0};
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int64_t> num_unfinished_{0};

  std::mutex sleep_;
  std::condition_variable wake_;
  std::atomic<int> num_sleeping_{0};
};

// Never destroyed: its threads live as long as the process.
Pool& pool() {
  static Pool* const only = new Pool;
  return *only;
}

}  // namespace

void set_num_threads(int num_threads) { pool().resize(num_threads); }
int num_threads() { return pool().size(); }

void run_tasks(int64_t num_tasks, Task task, void* context) {
  pool().run(num_tasks, task, context);
}

int64_t count_wrong_jobs(int64_t num_jobs) {
  constexpr int64_t kMostTasksOfJob = 32;
  std::atomic<int> num_runs[kMostTasksOfJob];
  int64_t num_wrong = 0;
  for (int64_t job = 0; job < num_jobs; ++job) {
    const int64_t num_tasks = 2 + job * 7 % (kMostTasksOfJob - 1);
    for (std::atomic<int>& runs : num_runs) runs.store(0, std::memory_order_relaxed);
    parallel_for(num_tasks, [&](int64_t task) { num_runs[task].fetch_add(1); });
    bool is_right = true;
    for (int64_t task = 0; task < kMostTasksOfJob; ++task)
      is_right &= num_runs[task].load() == (task < num_tasks);
    num_wrong += !is_right;
  }
  return num_wrong;
}

}  // namespace stepwire
