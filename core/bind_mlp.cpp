// The Python face of Mlp, for actors.
#include "mlp.hpp"
#include "plain.hpp"

namespace fw {

// {address of the weights, address of the bias, inputs, outputs}
using GivenDense = std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>;

static Dense as_dense(const GivenDense& given) {
  const auto& [weight, bias, in, out] = given;
  return {reinterpret_cast<const float*>(weight), reinterpret_cast<const float*>(bias), in, out};
}

static Mlp make_mlp(const std::vector<std::vector<GivenDense>>& bodies, const GivenDense& policy, const GivenDense& value, bool is_tanh) {
  std::vector<std::vector<Dense>> made;
  for (const auto& body : bodies) {
    made.emplace_back();
    for (const auto& layer : body) made.back().push_back(as_dense(layer));
  }
  if (made.empty()) throw Refused("a network has a body or two, not none.");
  return {std::move(made), as_dense(policy), as_dense(value), is_tanh ? Activation::tanh : Activation::relu};
}

static void run_mlp(Mlp& self, nb::handle x, nb::handle result) {
  const i64 rows = Array::length(x, "x");
  const Array given(x, "x", {'f', 4}, rows, {i64(self.in())});
  View view;
  if (!view.open(result.ptr(), PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | PyBUF_WRITABLE)) throw Refused("the result must be an array to write to.");
  const Py_buffer& out = view.buffer;
  if (out.ndim != 2 || out.shape[0] != rows || out.shape[1] < i64(self.out()) + 1 || std::strcmp(out.format, "f") != 0)
    throw Refused("the result must be float32[" + std::to_string(rows) + "," + std::to_string(self.out() + 1) + " or more].");
  self.run(given.data<float>(), std::size_t(rows), static_cast<float*>(out.buf), std::size_t(out.shape[1]));
}

void bind_mlp(nb::module_& m) {
  nb::class_<Mlp>(m, "Mlp")
      .def_static("make", &make_mlp, nb::arg("bodies"), nb::arg("policy"), nb::arg("value"), nb::arg("is_tanh"))
      .def("run", &run_mlp, nb::arg("x"), nb::arg("result"));
}

}  // namespace fw
