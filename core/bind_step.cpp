// The loop of a world whose envs are Python objects of this process: step each, and copy what is as it should be.
#include <cmath>
#include <cstring>

#include "bind.hpp"

namespace fw {

// What step_lanes() says of the steps it made.
enum Found : int {
  goes_on = 0,  // every row is in its place, and no episode ended
  has_ended = 1,  // every row is in its place; `ends` says which are the last of their episode
  look_closely = 2,  // something is not plain: the caller reads the results itself
};

namespace {

constexpr std::uint8_t terminated_bit = 1, truncated_bit = 2;

// A buffer that is let go at the end.
struct View {
  Py_buffer buffer{};
  bool is_open = false;
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

// A bool, Python's or NumPy's: -1 where it is neither.
int flag_of(PyObject* value, const Numpy& numpy) {
  if (value == Py_False || value == numpy.no) return 0;
  if (value == Py_True || value == numpy.yes) return 1;
  return -1;
}

// A float or an int as it is: NaN where it is something else.
double number_of(PyObject* value) {
  if (PyFloat_Check(value)) return PyFloat_AS_DOUBLE(value);
  if (!PyLong_CheckExact(value)) return NAN;
  const double number = PyLong_AsDouble(value);
  if (PyErr_Occurred() == nullptr) return number;
  PyErr_Clear();  // it is larger than any double
  return NAN;
}

// Copies an observation that is an array of the row's type and shape, finite where it is of floats.
bool copy_row(PyObject* observed, const Py_buffer& rows, std::size_t row, const Numpy& numpy) {
  if (!PyObject_TypeCheck(observed, numpy.array)) return false;
  View view;
  if (!view.open(observed, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT)) return false;
  const Py_buffer& one = view.buffer;
  if (one.ndim != rows.ndim - 1 || std::strcmp(one.format, rows.format) != 0) return false;
  for (int i = 0; i < one.ndim; ++i)
    if (one.shape[i] != rows.shape[i + 1]) return false;
  const auto size = std::size_t(one.len);
  const char kind = one.format[0];
  if (kind == 'f' ? !all_finite<float>(one.buf, size) : kind == 'd' && !all_finite<double>(one.buf, size)) return false;
  std::memcpy(static_cast<char*>(rows.buf) + row * size, one.buf, size);
  return true;
}

bool is_known(const char* format) { return format != nullptr && std::strchr("fd?bBhHiIlLqQ", format[0]) && !format[1]; }

using List = nb::typed<nb::list, nb::object>;

int step_lanes(const List& steps, const List& logs, const List& actions, const List& results, nb::handle obs, nb::handle reward,
               nb::handle ends) {
  const auto count = std::size_t(PyList_GET_SIZE(steps.ptr()));
  if (std::size_t(PyList_GET_SIZE(logs.ptr())) != count || std::size_t(PyList_GET_SIZE(actions.ptr())) != count)
    throw Refused("step_lanes needs a log and an action per step.");
  const Numpy& numpy = Numpy::get();
  View rows, rewards, flags;
  if (!rows.open(obs.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE) ||
      !rewards.open(reward.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE) ||
      !flags.open(ends.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE))
    throw Refused("step_lanes writes into contiguous arrays.");
  if (rows.buffer.ndim < 2 || std::size_t(rows.buffer.shape[0]) != count || std::size_t(flags.buffer.len) != count ||
      std::strcmp(rewards.buffer.format, "f") != 0 || std::size_t(rewards.buffer.len) != count * sizeof(float))
    throw Refused("step_lanes writes a row, a float32 reward and a byte per step.");
  bool is_plain = is_known(rows.buffer.format), has_end = false;
  auto* told = static_cast<float*>(rewards.buffer.buf);
  auto* over = static_cast<std::uint8_t*>(flags.buffer.buf);
  for (std::size_t i = 0; i < count; ++i) {
    PyObject* action = PyList_GET_ITEM(actions.ptr(), Py_ssize_t(i));
    nb::object kept = nb::steal(PyObject_CallOneArg(PyList_GET_ITEM(logs.ptr(), Py_ssize_t(i)), action));
    if (!kept.is_valid()) throw nb::python_error();
    nb::object result = nb::steal(PyObject_CallOneArg(PyList_GET_ITEM(steps.ptr(), Py_ssize_t(i)), action));
    if (!result.is_valid()) throw nb::python_error();
    PyObject* tuple = result.ptr();
    if (PyList_Append(results.ptr(), tuple) != 0) throw nb::python_error();
    if (!is_plain) continue;
    is_plain = PyTuple_CheckExact(tuple) && PyTuple_GET_SIZE(tuple) == 5;
    if (!is_plain) continue;
    PyObject* value = PyTuple_GET_ITEM(tuple, 1);
    const double number = number_of(value);
    const int terminated = flag_of(PyTuple_GET_ITEM(tuple, 2), numpy), truncated = flag_of(PyTuple_GET_ITEM(tuple, 3), numpy);
    is_plain = std::abs(number) <= std::numeric_limits<float>::max() && terminated >= 0 && truncated >= 0 &&
               copy_row(PyTuple_GET_ITEM(tuple, 0), rows.buffer, i, numpy);
    if (!is_plain) continue;
    told[i] = float(number);
    over[i] = std::uint8_t(terminated * terminated_bit + truncated * truncated_bit);
    has_end |= over[i] != 0;
  }
  return !is_plain ? look_closely : has_end ? has_ended : goes_on;
}

// One row of an array, where the observation is plain.
bool put_row(nb::handle observed, nb::handle obs, std::size_t row) {
  View rows;
  if (!rows.open(obs.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE) || rows.buffer.ndim < 2 ||
      row >= std::size_t(rows.buffer.shape[0]))
    throw Refused("put_row writes into a row of a contiguous array.");
  return is_known(rows.buffer.format) && copy_row(observed.ptr(), rows.buffer, row, Numpy::get());
}

// --- a vector env that resets an ended lane in the step after ----------------------------------------------------------------

bool is_finite(const Py_buffer& rows) {
  const char kind = rows.format[0];
  return kind == 'f'   ? all_finite<float>(rows.buf, std::size_t(rows.len))
         : kind == 'd' ? all_finite<double>(rows.buf, std::size_t(rows.len))
                       : true;
}

bool has_shape_of(const Py_buffer& a, const Py_buffer& b) {
  if (a.ndim != b.ndim || std::strcmp(a.format, b.format) != 0) return false;
  for (int i = 0; i < a.ndim; ++i)
    if (a.shape[i] != b.shape[i]) return false;
  return true;
}

// An array that the env gave: read only as long as the view is open.
bool open_array(View& view, nb::handle object, const Numpy& numpy) {
  return PyObject_TypeCheck(object.ptr(), numpy.array) && view.open(object.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_FORMAT);
}

// Reads a step of all lanes. `like` has the shape and type that observations should have, `first` tells whose step was a reset.
// Writes float32 rewards (0 for a reset) and which episodes are over; gives how many, or -1 where something is not plain.
int look_at_lanes(nb::handle observed, nb::handle rewards, nb::handle terminated, nb::handle truncated, nb::handle like,
                  nb::handle first, nb::handle reward_out, nb::handle over_out) {
  const Numpy& numpy = Numpy::get();
  View wanted, resets, told, over;
  if (!wanted.open(like.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) || !resets.open(first.ptr(), PyBUF_C_CONTIGUOUS) ||
      !told.open(reward_out.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE) ||
      !over.open(over_out.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) || wanted.buffer.ndim < 1)
    throw Refused("look_at_lanes reads and writes contiguous arrays.");
  const auto n = std::size_t(wanted.buffer.shape[0]);
  if (std::size_t(resets.buffer.len) != n || std::size_t(over.buffer.len) != n || std::strcmp(told.buffer.format, "f") != 0 ||
      std::size_t(told.buffer.len) != n * sizeof(float))
    throw Refused("look_at_lanes writes a float32 reward and a byte per lane.");
  View rows, given, ended, cut;
  if (!open_array(rows, observed, numpy) || !open_array(given, rewards, numpy) || !open_array(ended, terminated, numpy) ||
      !open_array(cut, truncated, numpy))
    return -1;
  const auto is_column = [n](const Py_buffer& column, char kind) {
    return column.ndim == 1 && std::size_t(column.shape[0]) == n && column.format[0] == kind && !column.format[1];
  };
  const bool is_double = is_column(given.buffer, 'd');
  if (!is_known(wanted.buffer.format) || !has_shape_of(rows.buffer, wanted.buffer) || !is_finite(rows.buffer) ||
      !(is_double || is_column(given.buffer, 'f')) || !is_column(ended.buffer, '?') || !is_column(cut.buffer, '?'))
    return -1;
  auto* out = static_cast<float*>(told.buffer.buf);
  auto* is_over = static_cast<std::uint8_t*>(over.buffer.buf);
  const auto* was_reset = static_cast<const std::uint8_t*>(resets.buffer.buf);
  const auto* a = static_cast<const std::uint8_t*>(ended.buffer.buf);
  const auto* b = static_cast<const std::uint8_t*>(cut.buffer.buf);
  int count = 0;
  bool fits = true;
  for (std::size_t i = 0; i < n; ++i) {
    const double value = is_double ? static_cast<const double*>(given.buffer.buf)[i] : static_cast<const float*>(given.buffer.buf)[i];
    fits &= std::abs(value) <= double(std::numeric_limits<float>::max());
    out[i] = was_reset[i] ? 0.0f : float(value);
    is_over[i] = std::uint8_t((a[i] | b[i]) & !was_reset[i]);
    count += is_over[i];
  }
  return fits ? count : -1;
}

using Arrays = nb::typed<nb::tuple, nb::object, nb::ellipsis>;

// Parts the lanes of a step: those that go on (number, row, reward, first) and those that are over (number, row, reward, terminated,
// truncated), each into arrays of its own.
void part_lanes(nb::handle observed, nb::handle reward, nb::handle first, nb::handle terminated, nb::handle truncated,
                nb::handle over, const Arrays& going, const Arrays& ended) {
  nb::handle from[2][5] = {{{}, observed, reward, first, {}}, {{}, observed, reward, terminated, truncated}};
  View mask;
  if (!mask.open(over.ptr(), PyBUF_C_CONTIGUOUS)) throw Refused("part_lanes reads contiguous arrays.");
  const auto n = std::size_t(mask.buffer.len);
  const auto* is_over = static_cast<const std::uint8_t*>(mask.buffer.buf);
  for (int side = 0; side < 2; ++side) {
    const Arrays& targets = side ? ended : going;
    for (std::size_t k = 0; k < targets.size(); ++k) {
      View to, source;
      if (!to.open(targets[k].ptr(), PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE) ||
          (k > 0 && !source.open(from[side][k].ptr(), PyBUF_C_CONTIGUOUS)))
        throw Refused("part_lanes reads and writes contiguous arrays.");
      const std::size_t size = k == 0 ? sizeof(i64) : std::size_t(source.buffer.len) / n;
      auto* at = static_cast<char*>(to.buffer.buf);
      const char* const end = at + to.buffer.len;
      for (std::size_t i = 0; i < n; ++i) {
        if (int(is_over[i]) != side) continue;
        if (at + size > end) throw Refused("part_lanes was given arrays that are too small.");
        const i64 number = i64(i);
        std::memcpy(at, k == 0 ? reinterpret_cast<const char*>(&number) : static_cast<const char*>(source.buffer.buf) + i * size, size);
        at += size;
      }
      if (at != end) throw Refused("part_lanes was given arrays that are too large.");
    }
  }
}

}  // namespace

void bind_step(nb::module_& m) {
  m.def("step_lanes", &step_lanes, nb::arg("steps"), nb::arg("logs"), nb::arg("actions"), nb::arg("results"), nb::arg("obs"),
        nb::arg("reward"), nb::arg("ends"));
  m.def("look_at_lanes", &look_at_lanes, nb::arg("observed"), nb::arg("rewards"), nb::arg("terminated"), nb::arg("truncated"),
        nb::arg("like"), nb::arg("first"), nb::arg("reward_out"), nb::arg("over_out"));
  m.def("part_lanes", &part_lanes, nb::arg("observed"), nb::arg("reward"), nb::arg("first"), nb::arg("terminated"),
        nb::arg("truncated"), nb::arg("over"), nb::arg("going"), nb::arg("ended"));
  m.def("put_row", &put_row, nb::arg("observed"), nb::arg("obs"), nb::arg("row"));
}

}  // namespace fw
