// The compiled part of Freewheel. Python faces: freewheel.memory, freewheel.weights, freewheel.report, freewheel.worlds.
#include "bind.hpp"

NB_MODULE(_core, m) {
  nb::object refused = nb::module_::import_("freewheel.errors").attr("ReplayError");
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void* error_class) {
        try {
          std::rethrow_exception(thrown);
        } catch (const fw::Refused& e) {
          PyErr_SetString(static_cast<PyObject*>(error_class), e.what());
        }
      },
      refused.inc_ref().ptr());  // kept for the life of the process, as the module is
  fw::bind_memory(m);
  fw::bind_lanes(m);
  fw::bind_sampler(m);
  fw::bind_step(m);
  fw::bind_vector(m);
  fw::bind_mlp(m);
  fw::bind_chance(m);
}
