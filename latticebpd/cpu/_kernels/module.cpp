// latticebpd.cpu._kernels: the kernels of passes over few tokens under pybind11.  Addresses come in checked by the Python module.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "attention.hpp"
#include "best.hpp"
#include "heads.hpp"
#include "layer.hpp"
#include "linear.hpp"
#include "places.hpp"
#include "latticebpd/gil_release.hpp"
#include "rounded.hpp"
#include "screened.hpp"

namespace py = pybind11;

namespace latticebpd {

// The addresses of a weight, of its bias or 0, and between them how many outputs it has.
using Placed = std::tuple<std::uintptr_t, std::size_t, std::uintptr_t>;

const float* numbers(std::uintptr_t address) { return reinterpret_cast<const float*>(address); }
float* written(std::uintptr_t address) { return reinterpret_cast<float*>(address); }

Matrix matrix(const Placed& placed) {
    const auto [weight, outputs, bias] = placed;
    return {numbers(weight), numbers(bias), outputs};
}

PYBIND11_MODULE(_kernels, module) {
    module.def("kinds", [] { return kinds().size(); });
    py::class_<Panels>(module, "Panels")
        .def(py::init([](std::uintptr_t weight, std::size_t outputs, std::size_t inputs, std::uintptr_t bias, std::size_t kind) {
                 return std::make_unique<Panels>(std::vector{matrix({weight, outputs, bias})}, inputs, kind);
             }),
             py::arg("weight"), py::arg("outputs"), py::arg("inputs"), py::arg("bias") = 0, py::arg("kind") = 0, py::call_guard<latticebpd::GilRelease>())
        .def(
            "multiply",
            [](const Panels& panels, std::uintptr_t x, std::size_t rows, std::uintptr_t y, std::size_t threads) {
                panels.multiply(numbers(x), rows, written(y), threads);
            },
            py::arg("x"), py::arg("rows"), py::arg("y"), py::arg("threads") = 1, py::call_guard<latticebpd::GilRelease>());
    py::class_<Layer>(module, "Layer")
        .def(py::init([](const std::array<Placed, 7>& matrices, const std::array<std::uintptr_t, 2>& norms,
                         const std::array<std::size_t, 5>& shape, const std::array<float, 2>& epsilons, std::size_t kind) {
                 std::vector<Matrix> placed;
                 for (const Placed& each : matrices) placed.push_back(matrix(each));
                 const auto norm = [&](std::size_t i) { return Norm{{numbers(norms[i]), numbers(norms[i]) + shape[0]}, epsilons[i]}; };
                 const latticebpd::GilRelease gil_release;
                 return std::make_unique<Layer>(placed, norm(0), norm(1), Shape{shape[0], shape[1], shape[2], shape[3], shape[4]}, kind);
             }),
             py::arg("matrices"), py::arg("norms"), py::arg("shape"), py::arg("epsilons"), py::arg("kind") = 0)
        .def(
            "before",
            [](const Layer& layer, std::uintptr_t x, std::size_t rows, std::uintptr_t cosines, std::uintptr_t sines, std::size_t turns,
               std::uintptr_t to, std::size_t threads) {
                layer.before(numbers(x), rows, numbers(cosines), numbers(sines), turns, written(to), threads);
            },
            py::arg("x"), py::arg("rows"), py::arg("cosines"), py::arg("sines"), py::arg("turns"), py::arg("to"), py::arg("threads") = 1,
            py::call_guard<latticebpd::GilRelease>())
        .def(
            "after",
            [](const Layer& layer, std::uintptr_t x, std::uintptr_t attended, std::size_t rows, std::uintptr_t to, std::size_t threads) {
                layer.after(numbers(x), numbers(attended), rows, written(to), threads);
            },
            py::arg("x"), py::arg("attended"), py::arg("rows"), py::arg("to"), py::arg("threads") = 1, py::call_guard<latticebpd::GilRelease>());
    module.def("rounded_kinds", [] { return rounded_kinds().size(); });
    py::class_<Rounded>(module, "Rounded")
        .def(py::init([](std::uintptr_t weight, std::size_t outputs, std::size_t inputs, std::size_t kind) {
                 return std::make_unique<Rounded>(numbers(weight), outputs, inputs, kind);
             }),
             py::arg("weight"), py::arg("outputs"), py::arg("inputs"), py::arg("kind") = 0, py::call_guard<latticebpd::GilRelease>())
        .def(
            "multiply",
            [](const Rounded& rounded, std::uintptr_t x, std::size_t rows, std::uintptr_t y, std::size_t threads) {
                rounded.multiply(numbers(x), rows, written(y), threads);
            },
            py::arg("x"), py::arg("rows"), py::arg("y"), py::arg("threads") = 1, py::call_guard<latticebpd::GilRelease>());
    py::class_<Screened>(module, "Screened")
        .def(py::init([](const Panels& panels, std::uintptr_t weight, std::size_t outputs, std::size_t inputs, std::uintptr_t bias,
                         std::size_t kind, std::size_t rounded_kind) {
                 const latticebpd::GilRelease gil_release;
                 return std::make_unique<Screened>(panels, numbers(weight), numbers(bias), outputs, inputs, kind, rounded_kind);
             }),
             py::arg("panels"), py::arg("weight"), py::arg("outputs"), py::arg("inputs"), py::arg("bias") = 0, py::arg("kind") = 0,
             py::arg("rounded_kind") = 0, py::keep_alive<1, 2>())
        .def(
            "largest",
            [](const Screened& screened, std::uintptr_t x, std::size_t rows, std::uintptr_t to, std::size_t threads) {
                screened.largest(numbers(x), rows, reinterpret_cast<std::int64_t*>(to), threads);
            },
            py::arg("x"), py::arg("rows"), py::arg("to"), py::arg("threads") = 1, py::call_guard<latticebpd::GilRelease>());
    py::class_<RoundedHeads>(module, "RoundedHeads")
        .def(py::init([](std::uintptr_t up, std::uintptr_t down, std::size_t heads, std::size_t size, std::size_t inner) {
                 return std::make_unique<RoundedHeads>(numbers(up), numbers(down), heads, size, inner);
             }),
             py::arg("up"), py::arg("down"), py::arg("heads"), py::arg("size"), py::arg("inner"), py::call_guard<latticebpd::GilRelease>())
        .def(
            "states",
            [](const RoundedHeads& heads, std::uintptr_t x, std::size_t rows, std::size_t asked, std::uintptr_t to, std::size_t threads) {
                heads.states(numbers(x), rows, asked, written(to), threads);
            },
            py::arg("x"), py::arg("rows"), py::arg("heads"), py::arg("to"), py::arg("threads") = 1, py::call_guard<latticebpd::GilRelease>());
    module.def(
        "move",
        [](std::uintptr_t buffer, std::size_t heads, std::size_t places, std::size_t bytes, const std::vector<Move>& moves) {
            move_places(reinterpret_cast<char*>(buffer), heads, places, bytes, moves);
        },
        py::arg("buffer"), py::arg("heads"), py::arg("places"), py::arg("bytes"), py::arg("moves"));
    module.def(
        "best",
        [](std::uintptr_t x, std::size_t rows, std::size_t count, std::size_t k, std::uintptr_t values, std::uintptr_t places,
           std::uintptr_t totals, std::size_t threads, std::size_t kind) {
            const Best best{numbers(x), count, k, written(values), reinterpret_cast<std::int32_t*>(places), written(totals)};
            rows_of(best, rows, threads, kinds().at(kind).lanes);
        },
        py::arg("x"), py::arg("rows"), py::arg("count"), py::arg("k"), py::arg("values"), py::arg("places"), py::arg("totals"),
        py::arg("threads") = 1, py::arg("kind") = 0, py::call_guard<latticebpd::GilRelease>());
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
            const latticebpd::GilRelease gil_release;
            attend(attention, threads, kind);
        },
        py::arg("addresses"), py::arg("shape"), py::arg("strides"), py::arg("looks"), py::arg("scale"), py::arg("threads") = 1,
        py::arg("kind") = 0);
}

}  // namespace latticebpd
