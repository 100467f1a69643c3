// A test is a function with a name; CHECK notes what does not hold, from any thread, and goes on.
#pragma once

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <vector>

namespace fw::test {

struct Test;
inline std::vector<const Test*> tests;

struct Test {
  const char* name;
  void (*body)();
  Test(const char* n, void (*b)()) : name(n), body(b) { tests.push_back(this); }
};

inline bool is_full = false;  // --full: the counts of `make core-test`
template <class T>
T quick_or_full(T quick, T full) {
  return is_full ? full : quick;
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool is_sanitized = true;
#else
constexpr bool is_sanitized = false;
#endif

inline const char* skipped = nullptr;  // a test says here why it has not run

inline std::atomic<int> num_wrong{0};

__attribute__((format(printf, 3, 4))) inline void wrong(const char* file, int line, const char* what, ...) {
  if (num_wrong.fetch_add(1) >= 5) return;  // the first few say enough
  char text[400];
  va_list arguments;
  va_start(arguments, what);
  std::vsnprintf(text, sizeof text, what, arguments);
  va_end(arguments);
  std::printf("  %s:%d: %s\n", file, line, text);
}

}  // namespace fw::test

#define TEST(name)                                        \
  static void name();                                     \
  static const fw::test::Test test_##name{#name, &name}; \
  static void name()

// CHECK(holds, "what is wrong with %d", value)
#define CHECK(holds, ...)                                              \
  do {                                                                 \
    if (!(holds)) fw::test::wrong(__FILE__, __LINE__, __VA_ARGS__); \
  } while (false)
