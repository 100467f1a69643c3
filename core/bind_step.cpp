// The loop of a world whose envs are Python objects of this process: step each, and copy what is as it should be.
#include "plain.hpp"

namespace fw {

// What step_lanes() says of the steps it made.
enum Found : int {
  goes_on = 0,  // every row is in its place, and no episode ended
  has_ended = 1,  // every row is in its place; `ends` says which are the last of their episode
  look_closely = 2,  // something is not plain: the caller reads the results itself
};

namespace {

constexpr std::uint8_t terminated_bit = 1, truncated_bit = 2;

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

}  // namespace

void bind_step(nb::module_& m) {
  m.def("step_lanes", &step_lanes, nb::arg("steps"), nb::arg("logs"), nb::arg("actions"), nb::arg("results"), nb::arg("obs"),
        nb::arg("reward"), nb::arg("ends"));
  m.def("put_row", &put_row, nb::arg("observed"), nb::arg("obs"), nb::arg("row"));
}

}  // namespace fw
