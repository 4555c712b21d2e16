// latticebpd.cpu._kernels under pybind11. The Python package checks the arrays whose addresses come in.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "attention.hpp"
#include "cache_moves.hpp"
#include "int8_heads.hpp"
#include "int8_linear.hpp"
#include "latticebpd/gil_release.hpp"
#include "linear.hpp"
#include "llama_layer.hpp"
#include "quantized_argmax.hpp"
#include "top_k.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace cpu_kernels {

using latticebpd::GilRelease;
using Address = std::uintptr_t;
using Size = std::size_t;
using MatrixArguments = std::tuple<Address, Size, Address>;  // weight, its outputs, bias or 0

template <typename Number = float>
Number* at(Address address) {
    return reinterpret_cast<Number*>(address);
}

Matrix matrix(const MatrixArguments& arguments) {
    const auto [weight, outputs, bias] = arguments;
    return {at(weight), at(bias), outputs};
}

template <typename T>
using Argument = std::conditional_t<std::is_pointer_v<T>, Address, T>;

template <typename T>
T value(Argument<T> argument) {
    if constexpr (std::is_pointer_v<T>) return at<std::remove_pointer_t<T>>(argument);
    else return argument;
}

// A method whose pointers are given as addresses.
template <typename Class, typename... Parameters>
auto by_address(void (Class::*method)(Parameters...) const) {
    return [method](const Class& self, Argument<Parameters>... arguments) {
        (self.*method)(value<Parameters>(arguments)...);
    };
}

// Without the lock, which the registration of the object needs again.
template <typename Class, typename... Arguments>
std::unique_ptr<Class> built(Arguments&&... arguments) {
    const GilRelease gil_release;
    return std::make_unique<Class>(std::forward<Arguments>(arguments)...);
}

PYBIND11_MODULE(_kernels, module) {
    const py::call_guard<GilRelease> released;
    module.def("isas", [] { return isas().size(); });
    module.def("int8_isas", [] { return int8_isas().size(); });
    py::class_<Panels>(module, "Panels")
        .def(py::init([](Address weight, Size outputs, Size inputs, Address bias, Size isa) {
                 return built<Panels>(std::vector{matrix({weight, outputs, bias})}, inputs, isas().at(isa));
             }),
             "weight"_a, "outputs"_a, "inputs"_a, "bias"_a = 0, "isa"_a = 0)
        .def("multiply", by_address(&Panels::multiply), released);
    py::class_<Int8Weights>(module, "Int8Weights")
        .def(py::init([](Address weight, Size outputs, Size inputs, Size isa) {
                 return built<Int8Weights>(at(weight), outputs, inputs, isa);
             }),
             "weight"_a, "outputs"_a, "inputs"_a, "isa"_a = 0)
        .def("multiply", by_address(&Int8Weights::multiply), released);
    py::class_<QuantizedArgmax>(module, "QuantizedArgmax")
        .def(py::init([](const Panels& panels, Address weight, Size outputs, Size inputs, Address bias, Size isa,
                         Size int8_isa) {
                 const Matrix given = matrix({weight, outputs, bias});
                 return built<QuantizedArgmax>(panels, given, inputs, isas().at(isa), int8_isa);
             }),
             "panels"_a, "weight"_a, "outputs"_a, "inputs"_a, "bias"_a = 0, "isa"_a = 0, "int8_isa"_a = 0,
             py::keep_alive<1, 2>())
        .def("argmax", by_address(&QuantizedArgmax::argmax), released);
    py::class_<Int8Heads>(module, "Int8Heads")
        .def(py::init([](Address up, Address down, Size heads, Size size, Size inner) {
                 return built<Int8Heads>(at(up), at(down), heads, size, inner);
             }))
        .def("states", by_address(&Int8Heads::states), released);
    py::class_<LlamaLayer>(module, "LlamaLayer")
        .def(py::init([](const std::array<MatrixArguments, 7>& arguments, const std::array<Address, 2>& norms,
                         const std::array<Size, 5>& shape, const std::array<float, 2>& epsilons, Size isa) {
                 std::vector<Matrix> matrices;
                 for (const MatrixArguments& each : arguments) matrices.push_back(matrix(each));
                 const auto [size, heads, groups, head_size, inner] = shape;
                 const auto norm = [&](Size i) {
                     return NormWeights{{at(norms[i]), at(norms[i]) + shape[0]}, epsilons[i]};
                 };
                 const LayerShape sizes{size, heads, groups, head_size, inner};
                 return built<LlamaLayer>(matrices, norm(0), norm(1), sizes, isas().at(isa));
             }),
             "matrices"_a, "norms"_a, "shape"_a, "epsilons"_a, "isa"_a = 0)
        .def("before_attention", by_address(&LlamaLayer::before_attention), released)
        .def("after_attention", by_address(&LlamaLayer::after_attention), released);
    module.def("attend",
               [](const std::array<Address, 5>& addresses, const std::array<Size, 6>& shape,
                  const std::array<std::ptrdiff_t, 13>& strides, int kind, float scale, Size threads, Size isa) {
                   const auto strided = [&](Size i) {
                       return Strided{at(addresses[i]), strides[3 * i], strides[3 * i + 1], strides[3 * i + 2]};
                   };
                   const MaskView mask{static_cast<MaskKind>(kind), at<void>(addresses[3]), strides[9], strides[10],
                                       strides[11], strides[12]};
                   const auto [rows, heads, groups, columns, keys, size] = shape;
                   const Attention attention{strided(0), strided(1), strided(2), mask, at(addresses[4]), rows, heads,
                                             groups, columns, keys, size, scale};
                   attend(attention, threads, isas().at(isa));
               },
               "addresses"_a, "shape"_a, "strides"_a, "mask_kind"_a, "scale"_a, "threads"_a, "isa"_a = 0, released);
    module.def("top_k",
               [](Address x, Size rows, Size count, Size k, Address values, Address indices, Address log_sums,
                  Size threads, Size isa) {
                   const TopK op{at(x), count, k, at(values), at<std::int32_t>(indices), at(log_sums)};
                   for_each_row(op, rows, threads, isas().at(isa));
               },
               "x"_a, "rows"_a, "count"_a, "k"_a, "values"_a, "indices"_a, "log_sums"_a, "threads"_a, "isa"_a = 0,
               released);
    module.def("move", [](Address buffer, Size heads, Size positions, Size bytes, const std::vector<Move>& moves) {
        move_vectors(at<char>(buffer), heads, positions, bytes, moves);
    });
}

}  // namespace cpu_kernels
