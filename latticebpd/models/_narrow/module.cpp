// latticebpd.models._narrow: the kernels of passes over few tokens under pybind11.  Addresses come in checked by the Python module.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "attention.hpp"
#include "linear.hpp"
#include "released.hpp"

namespace py = pybind11;

namespace latticebpd {

PYBIND11_MODULE(_narrow, module) {
    module.def("kinds", [] { return kinds().size(); });
    py::class_<Panels>(module, "Panels")
        .def(py::init<std::uintptr_t, std::size_t, std::size_t, std::uintptr_t, std::size_t>(), py::arg("weight"), py::arg("outputs"),
             py::arg("inputs"), py::arg("bias") = 0, py::arg("kind") = 0, py::call_guard<Released>())
        .def("multiply", &Panels::multiply, py::arg("x"), py::arg("rows"), py::arg("y"), py::arg("threads") = 1,
             py::call_guard<Released>());
    module.def(
        "attend",
        [](const std::array<std::uintptr_t, 5>& addresses, const std::array<std::size_t, 6>& shape,
           const std::array<std::ptrdiff_t, 13>& strides, int looks, float scale, std::size_t threads, std::size_t kind) {
            const auto strided = [&](std::size_t i) {
                return Strided{reinterpret_cast<const float*>(addresses[i]), strides[3 * i], strides[3 * i + 1], strides[3 * i + 2]};
            };
            const Mask mask{static_cast<Looks>(looks), reinterpret_cast<const void*>(addresses[3]), strides[9], strides[10], strides[11],
                            strides[12]};
            const auto [rows, heads, groups, columns, places, size] = shape;
            const Attention attention{strided(0), strided(1), strided(2), mask, reinterpret_cast<float*>(addresses[4]),
                                      rows, heads, groups, columns, places, size, scale};
            const Released released;
            attend(attention, threads, kind);
        },
        py::arg("addresses"), py::arg("shape"), py::arg("strides"), py::arg("looks"), py::arg("scale"), py::arg("threads") = 1,
        py::arg("kind") = 0);
}

}  // namespace latticebpd
