// What the Python faces of the core share: refusing forked children, checking arrays, waits that Ctrl-C ends.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
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

// An array argument, held for the length of a call. Nothing is converted: what does not fit is refused with both sides named.
class Array {
 public:
  struct Type {
    char kind;  // f float, i int, u uint, b bool: numpy's letters
    std::size_t itemsize;
  };

  Array(nb::handle object, const std::string& what, Type type, const std::vector<i64>& shape) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
      PyErr_Clear();
      throw Refused(what + " must be a C-contiguous array of " + describe(type, shape) + ", not " +
                    nb::cast<std::string>(nb::str(nb::handle((PyObject*)Py_TYPE(object.ptr())).attr("__name__"))) +
                    (PyObject_CheckBuffer(object.ptr()) ? " with gaps between its items." : "."));
    }
    const Type given{kind_of(view_.format), std::size_t(view_.itemsize)};
    const std::vector<i64> dims(view_.shape, view_.shape + view_.ndim);
    if (given.kind != type.kind || given.itemsize != type.itemsize || dims != shape) {
      PyBuffer_Release(&view_);
      throw Refused(what + " must be " + describe(type, shape) + ", not " + describe(given, dims) + ".");
    }
  }
  ~Array() { PyBuffer_Release(&view_); }
  Array(const Array&) = delete;

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
  static char kind_of(const char* format) {
    const char c = format ? format[format[0] == '<' || format[0] == '@' || format[0] == '='] : 'B';
    if (c == '?') return 'b';
    if (std::strchr("efd", c)) return 'f';
    if (std::strchr("bhilqn", c)) return 'i';
    if (std::strchr("BHILQN", c)) return 'u';
    return c;
  }
  static std::string describe(Type type, const std::vector<i64>& shape) {
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

}  // namespace fw
