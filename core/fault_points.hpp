// Fault points: named places where a test has this process killed or stopped, because random moments miss small windows.
//
// Contract
//   * At most one point is armed in a process, before its threads begin; it strikes once, at the given arrival.
//   * Where none is armed an arrival costs one load and one comparison.
#pragma once

#include <array>
#include <csignal>
#include <string>

#include <unistd.h>

#include "policy.hpp"

namespace fw {

enum class Point { reserve, write, commit, publish_begin, publish_end, insert, tree_update, ckpt_write, ckpt_fsync, ckpt_rename, ckpt_dirsync, spawn, none };

inline constexpr std::array point_names{"reserve",     "write",      "commit",     "publish-begin", "publish-end",  "insert",
                                        "tree-update", "ckpt-write", "ckpt-fsync", "ckpt-rename",   "ckpt-dirsync", "spawn"};
static_assert(point_names.size() == std::size_t(Point::none));

// Point::none for a name that there is not.
inline Point point_named(const std::string& name) {
  return Point(std::find(point_names.begin(), point_names.end(), name) - point_names.begin());
}

struct ArmedPoint {
  Point point = Point::none;
  int signal = SIGKILL;
  std::atomic<i64> left{0};
};
inline ArmedPoint armed_point;

inline void reach(Point point) {
  if (point != armed_point.point) [[likely]]
    return;
  if (armed_point.left.fetch_sub(1) == 1) kill(getpid(), armed_point.signal);
}

}  // namespace fw
