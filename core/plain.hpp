// What is plain enough for the core to read by itself: arrays of NumPy with numbers in them, all finite.
#pragma once

#include <cmath>
#include <cstring>

#include "bind.hpp"

namespace fw {

// A buffer that is let go at the end.
struct View {
  Py_buffer buffer{};
  bool is_open = false;
  View() = default;
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  bool open(PyObject* object, int flags) {
    is_open = PyObject_GetBuffer(object, &buffer, flags) == 0;
    if (!is_open) PyErr_Clear();
    return is_open;
  }
  ~View() {
    if (is_open) PyBuffer_Release(&buffer);
  }
};

// Borrowed for the life of the process: NumPy is never unloaded.
struct Numpy {
  PyTypeObject* array;
  PyObject *yes, *no;
  static const Numpy& get() {
    static const Numpy numpy = [] {
      nb::module_ m = nb::module_::import_("numpy");
      return Numpy{reinterpret_cast<PyTypeObject*>(m.attr("ndarray").inc_ref().ptr()), m.attr("True_").inc_ref().ptr(),
                   m.attr("False_").inc_ref().ptr()};
    }();
    return numpy;
  }
};

template <class T>
bool all_finite(const void* data, std::size_t num_bytes) {
  const T* values = static_cast<const T*>(data);
  bool fine = true;
  for (std::size_t i = 0; i < num_bytes / sizeof(T); ++i) fine &= std::isfinite(values[i]);
  return fine;
}

inline bool is_known(const char* format) { return format != nullptr && std::strchr("fd?bBhHiIlLqQ", format[0]) && !format[1]; }

}  // namespace fw
