// Runs the plain tests: plain [--full] [--only NAME]
#include <chrono>
#include <cstring>

#include "check.hpp"

#ifndef BUILD_NAME
#define BUILD_NAME "plain"
#endif

int main(int argc, char** argv) {
  using namespace fw::test;
  const char* only = nullptr;
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--full")) is_full = true;
    if (!std::strcmp(argv[i], "--only") && i + 1 < argc) only = argv[++i];
  }
  int failed = 0;
  for (const Test* test : tests) {
    if (only && std::strcmp(only, test->name)) continue;
    num_wrong = 0;
    skipped = nullptr;
    const auto begin = std::chrono::steady_clock::now();
    test->body();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (skipped)
      std::printf("skipped %s %s: %s\n", BUILD_NAME, test->name, skipped);
    else
      std::printf("%s %s %s: %.2f s\n", num_wrong ? "FAILED" : "ok", BUILD_NAME, test->name, seconds);
    if (num_wrong)
      std::printf("  %d checks failed\n  replay: %s%s --only %s\n", num_wrong.load(), argv[0], is_full ? " --full" : "",
                  test->name);
    std::fflush(stdout);
    failed += num_wrong != 0;
  }
  return failed ? 3 : 0;  // told apart from a crash by the Makefile
}
