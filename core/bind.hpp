// What the Python faces of the core share: refusing forked children, checking arrays, waits that Ctrl-C ends.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "segment.hpp"

namespace nb = nanobind;

namespace fw {

// Raised by one in every forked child: objects of the parent have threads and writers there that the child does not.
inline std::atomic<u64> fork_generation{0};

struct Home {
  u64 generation = fork_generation.load(std::memory_order_relaxed);
  void check() const {
    if (generation != fork_generation.load(std::memory_order_relaxed))
      throw Refused("this object was made before a fork and is used in the child. Start children with the forkserver or "
                    "spawn method and hand it over as a Process argument.");
  }
};

inline i64 deadline(double timeout_s) {
  if (!(timeout_s >= 0)) throw Refused("timeout_s=" + std::to_string(timeout_s) + " must be 0 or more.");
  return now_ns() + i64(std::min(timeout_s, 1e9) * 1e9);
}

// Called from waits that have let go of the GIL; a pending exception (KeyboardInterrupt) ends the wait.
struct SignalCheck {
  bool operator()() const {
    nb::gil_scoped_acquire gil;
    return PyErr_CheckSignals() != 0;
  }
};

inline void raise_pending() {
  if (PyErr_Occurred()) throw nb::python_error();
}

// Before a wait, while the GIL is held anyway: to take it again just for this would cost threads that share it more than the wait.
inline void check_signals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// Runs `wait(until_ns)` without the GIL, and raises what a signal left behind.
template <class Wait>
bool wait_without_gil(double timeout_s, Wait wait) {
  const i64 until = deadline(timeout_s);
  check_signals();
  bool reached;
  {
    nb::gil_scoped_release free;
    reached = wait(until);
  }
  raise_pending();
  return reached;
}

struct ArrayType {
  char kind;  // f float, i int, u uint, b bool: numpy's letters
  std::size_t itemsize;
};

// An array argument of `rows` rows, held for the length of a call. Nothing is converted: what does not fit is refused with both
// sides named.
class Array {
 public:
  Array(nb::handle object, const char* what, ArrayType type, i64 rows, const std::vector<i64>& row_shape = {}) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
      PyErr_Clear();
      throw Refused(std::string(what) + " must be a C-contiguous array of " + describe(type, shape_of(rows, row_shape)) +
                    ", not " + Py_TYPE(object.ptr())->tp_name +
                    (PyObject_CheckBuffer(object.ptr()) ? " with gaps between its items." : "."));
    }
    if (fits(type, rows, row_shape)) [[likely]]
      return;
    const std::string given = describe({kind_of(view_.format), std::size_t(view_.itemsize)},
                                       std::vector<i64>(view_.shape, view_.shape + view_.ndim));
    PyBuffer_Release(&view_);
    throw Refused(std::string(what) + " must be " + describe(type, shape_of(rows, row_shape)) + ", not " + given + ".");
  }
  Array(Array&& other) noexcept : view_(other.view_) { other.view_.obj = nullptr; }
  ~Array() { PyBuffer_Release(&view_); }  // does nothing for a view that was moved on

  template <class T>
  const T* data() const {
    return static_cast<const T*>(view_.buf);
  }

  static i64 length(nb::handle object, const char* what) {
    const Py_ssize_t n = PyObject_Length(object.ptr());
    if (n < 0) {
      PyErr_Clear();
      throw Refused(std::string(what) + " must be an array.");
    }
    return i64(n);
  }

 private:
  bool fits(ArrayType type, i64 rows, const std::vector<i64>& row_shape) const {
    return kind_of(view_.format) == type.kind && std::size_t(view_.itemsize) == type.itemsize &&
           std::size_t(view_.ndim) == row_shape.size() + 1 && view_.shape[0] == rows &&
           std::equal(row_shape.begin(), row_shape.end(), view_.shape + 1);
  }
  static std::vector<i64> shape_of(i64 rows, const std::vector<i64>& row_shape) {
    std::vector<i64> shape{rows};
    shape.insert(shape.end(), row_shape.begin(), row_shape.end());
    return shape;
  }
  static char kind_of(const char* format) {
    const char c = format ? format[format[0] == '<' || format[0] == '@' || format[0] == '='] : 'B';
    switch (c) {
      case '?':
        return 'b';
      case 'e': case 'f': case 'd':
        return 'f';
      case 'b': case 'h': case 'i': case 'l': case 'q': case 'n':
        return 'i';
      case 'B': case 'H': case 'I': case 'L': case 'Q': case 'N':
        return 'u';
      default:
        return c;
    }
  }
  static std::string describe(ArrayType type, const std::vector<i64>& shape) {
    std::string out = type.kind == 'f'   ? "float" + std::to_string(8 * type.itemsize)
                      : type.kind == 'i' ? "int" + std::to_string(8 * type.itemsize)
                      : type.kind == 'u' ? "uint" + std::to_string(8 * type.itemsize)
                      : type.kind == 'b' ? "bool"
                                         : std::string("type '") + type.kind + "'";
    out += "[";
    for (std::size_t i = 0; i < shape.size(); ++i) out += (i ? "," : "") + std::to_string(shape[i]);
    return out + "]";
  }

  Py_buffer view_;
};

inline void check_priorities(const float* priority, i64 count) {
  for (i64 i = 0; i < count; ++i)
    if (!(priority[i] >= 0) || std::isinf(priority[i]))
      throw Refused("priority[" + std::to_string(i) + "]=" + std::to_string(priority[i]) +
                    " must be finite and not negative. Nothing was changed.");
}

void bind_memory(nb::module_& m);
void bind_lanes(nb::module_& m);
void bind_sampler(nb::module_& m);
void bind_step(nb::module_& m);
void bind_vector(nb::module_& m);
void bind_mlp(nb::module_& m);
void bind_chance(nb::module_& m);

}  // namespace fw
