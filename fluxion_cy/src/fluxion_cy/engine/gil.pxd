# Releases and acquires the GIL, for stretches of a few microseconds.
#
# A thread that finds the GIL taken blocks, and the kernel resumes it tens of microseconds later. A match takes less time
# than that, so two threads, each with its own matcher, would be no faster than one. Therefore, a thread in `acquire_gil`
# first spins while another thread that has returned from `acquire_gil` has the GIL, usually for some microseconds. It stops
# spinning once the other thread has had the GIL for longer than `PATIENCE`, because that thread then runs other Python code.
# No thread overtakes a blocked one. No result depends on this. On a machine with one processor, no thread spins.
from cpython.pystate cimport PyThreadState

cdef extern from *:
    """
    #include <atomic>
    #include <chrono>
    #include <thread>

    namespace fluxion_gil {
    using Clock = std::chrono::steady_clock;
    constexpr long PATIENCE = 30000, AT_MOST = 200000;  // ns
    static std::atomic<long> taken{0};                  // since when one of these threads has the GIL, 0: none has it
    static std::atomic<long> since_sleep{-AT_MOST};          // when one of these threads last blocked, unless it is back
    static const bool alone = std::thread::hardware_concurrency() < 2;

    static inline long now() {
        return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
    }

    static inline void breathe() {
    #if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
    #elif defined(__aarch64__)
        __asm__ __volatile__("yield");
    #endif
    }

    static bool wait_awake() {
        for (;;) {
            long since = taken.load();
            const long moment = now();
            if (since == 0 && moment - since_sleep.load() > AT_MOST) {
                if (taken.compare_exchange_strong(since, moment)) return true;
            } else if (since != 0 && moment - since > PATIENCE) {
                return false;
            }
            breathe();
        }
    }

    static PyThreadState* left() {
        PyThreadState* state = PyEval_SaveThread();
        taken.store(0);
        return state;
    }

    static void back(PyThreadState* state) {
        if (alone || wait_awake()) {
            PyEval_RestoreThread(state);
            return;
        }
        since_sleep.store(now());
        PyEval_RestoreThread(state);
        since_sleep.store(-AT_MOST);
        taken.store(now());
    }
    }
    """
    PyThreadState* release_gil "fluxion_gil::left" () noexcept nogil
    void acquire_gil "fluxion_gil::back" (PyThreadState* state) noexcept nogil
