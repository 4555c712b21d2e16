// latticebpd.cpu._engine under pybind11.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <fst/gil_release.hpp>
#include <fst/refuse.hpp>

#include "kernels.hpp"
#include "transformer.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace engine {

using fst::GilRelease;
using fst::refuse;
template <typename Number>
using Array = py::array_t<Number, py::array::c_style>;

// of(states, rows, to) for rows of a model's hidden states, [n, hidden]; the output is [n, width].
template <typename Number, typename Compute>
Array<Number> computed(const Transformer& model, const Array<float>& states, std::size_t width, const Compute& of) {
    const std::size_t rows = rows_of(states, model.hidden());
    Array<Number> output({rows, width});
    Number* to = output.mutable_data();
    const GilRelease released;
    of(states.data(), rows, to);
    return output;
}

py::tuple read(const Transformer& model, const std::vector<Cache*>& caches, const std::vector<std::size_t>& counts,
               const Array<std::int64_t>& tokens, const Array<std::int64_t>& parents,
               const std::vector<std::size_t>& layers, std::size_t threads, bool grow) {
    if (caches.size() != counts.size())
        refuse("expected a number of columns for each of ", caches.size(), " caches, got ", counts.size());
    std::vector<Columns> texts;
    std::size_t total = 0;
    const auto size = static_cast<std::size_t>(tokens.size());
    for (std::size_t i = 0; i < caches.size(); ++i) {
        if (caches[i] == nullptr || std::count(caches.begin(), caches.end(), caches[i]) != 1)
            refuse("expected different caches, got one twice or none");
        if (caches[i]->shape() != model.cache_shape()) refuse("expected caches of the model, got another's");
        if (counts[i] > size - total) refuse("expected as many tokens and parents as columns, got ", size);
        texts.push_back({caches[i], tokens.data() + total, parents.data() + total, counts[i],
                         grow ? caches[i]->pending.size() : 0});
        total += counts[i];
    }
    if (tokens.ndim() != 1 || parents.ndim() != 1 || size != total || static_cast<std::size_t>(parents.size()) != total)
        refuse("expected as many tokens and parents as columns, ", total, ", got ", size, " and ", parents.size());
    for (const std::size_t layer : layers)
        if (layer >= model.num_layers()) refuse("expected layers below ", model.num_layers(), ", got ", layer);
    const CachesInUse in_use(caches);
    Array<float> hidden({total, model.hidden()}), states({total, layers.size() * model.hidden()});
    float *to = hidden.mutable_data(), *states_to = states.mutable_data();
    {
        const GilRelease released;
        model.read(texts, to, layers, states_to, threads);
    }
    return py::make_tuple(hidden, states);
}

Array<float> logits_of(const Transformer& model, const Array<float>& states, const Array<std::int64_t>& tokens,
                       const std::vector<std::size_t>& counts, std::size_t threads) {
    if (counts.size() != rows_of(states, model.hidden()))
        refuse("expected a number of tokens for each of ", states.shape(0), " states, got ", counts.size());
    const auto size = static_cast<std::size_t>(tokens.size());
    std::size_t left = size;
    for (const std::size_t count : counts) {
        if (count > left) refuse("expected the numbers of ", size, " tokens, got more");
        left -= count;
    }
    if (tokens.ndim() != 1 || left != 0) refuse("expected the numbers of ", size, " tokens [n], got others");
    for (std::size_t i = 0; i < size; ++i)
        if (tokens.data()[i] < 0 || static_cast<std::size_t>(tokens.data()[i]) >= model.vocabulary())
            refuse("expected tokens below ", model.vocabulary(), ", got ", tokens.data()[i]);
    Array<float> logits(static_cast<py::ssize_t>(size));
    float* to = logits.mutable_data();
    const GilRelease released;
    model.logits_of(states.data(), counts, tokens.data(), to, threads);
    return logits;
}

PYBIND11_MODULE(_engine, module) {
    bind_kernels(module);
    module.def("isas", [] { return operations().size(); });
    module.def(
        "dequantized",
        [](int type, const Array<std::uint8_t>& blocks) {
            const Type own = type_of(type);
            const auto [inputs, bytes] = block_of(own);
            const auto size = static_cast<std::size_t>(blocks.size());
            if (size % bytes != 0) refuse("expected blocks of ", bytes, " bytes, got ", size, " bytes");
            Array<float> numbers(static_cast<py::ssize_t>(size / bytes * inputs));
            read_row(own, blocks.data(), size / bytes * inputs, numbers.mutable_data());
            return numbers;
        },
        "type"_a, "blocks"_a);
    py::class_<WeightMemory, std::shared_ptr<WeightMemory>>(module, "WeightMemory").def(py::init<>());
    py::class_<Matrix, std::shared_ptr<Matrix>>(module, "Matrix")
        .def_static(
            "of_blocks",
            [](const std::shared_ptr<WeightMemory>& memory, int type, const Array<std::uint8_t>& blocks,
               std::size_t outputs, std::size_t inputs, const std::vector<std::int64_t>& order) {
                const Type own = type_of(type);
                const auto [block, bytes] = block_of(own);
                const auto size = static_cast<std::size_t>(blocks.size());
                // By division, since products of such numbers may not fit.
                if (inputs == 0 || inputs % block != 0 || size % bytes != 0 || size / bytes % (inputs / block) != 0 ||
                    size / bytes / (inputs / block) != outputs)
                    refuse("expected blocks of all weights, ", outputs, " x ", inputs, " in blocks of ", block,
                           " weights and ", bytes, " bytes, got ", size, " bytes");
                if (!order.empty() && order.size() != outputs)
                    refuse("expected a row for each of ", outputs, " outputs, got ", order.size());
                for (const std::int64_t row : order)
                    if (row < 0 || row >= static_cast<std::int64_t>(outputs))
                        refuse("expected rows of the matrix below ", outputs, ", got ", row);
                const std::uint8_t* from = blocks.data();
                const GilRelease released;
                return std::make_shared<Matrix>(memory, own, from, outputs, inputs, order);
            },
            "memory"_a, "type"_a, "blocks"_a, "outputs"_a, "inputs"_a, "order"_a = std::vector<std::int64_t>{})
        .def_static(
            "of_numbers",
            [](const std::shared_ptr<WeightMemory>& memory, const Array<float>& numbers, bool quantized) {
                if (numbers.ndim() != 2) refuse("expected weights [outputs, inputs], got ", numbers.ndim(), " axes");
                const float* from = numbers.data();
                const auto outputs = static_cast<std::size_t>(numbers.shape(0));
                const auto inputs = static_cast<std::size_t>(numbers.shape(1));
                const GilRelease released;
                if (quantized) return std::make_shared<Matrix>(memory, from, outputs, inputs);
                const auto* bytes = reinterpret_cast<const std::uint8_t*>(from);
                return std::make_shared<Matrix>(memory, Type::kF32, bytes, outputs, inputs,
                                                std::vector<std::int64_t>{});
            },
            "memory"_a, "numbers"_a, "quantized"_a)
        .def("set_bias", &Matrix::set_bias)
        .def(
            "multiply",
            [](const Matrix& matrix, const Array<float>& x, std::size_t threads, std::size_t isa) {
                const std::size_t rows = rows_of(x, matrix.inputs);
                Array<float> y({rows, matrix.outputs});
                const Workers workers{operations(isa), threads};
                float* to = y.mutable_data();
                const GilRelease released;
                Input(x.data(), rows, matrix.inputs, workers).multiply({&matrix}, to, matrix.outputs);
                return y;
            },
            "x"_a, "threads"_a = 1, "isa"_a = 0)
        .def("row",
             [](const Matrix& matrix, std::size_t output) {
                 if (output >= matrix.outputs) refuse("expected an output below ", matrix.outputs, ", got ", output);
                 Array<float> weights(static_cast<py::ssize_t>(matrix.inputs));
                 matrix.row(output, weights.mutable_data());
                 return weights;
             })
        .def_readonly("outputs", &Matrix::outputs)
        .def_readonly("inputs", &Matrix::inputs);
    py::class_<Layer>(module, "Layer")
        .def(py::init<>())
        .def_readwrite("input_norm", &Layer::input_norm)
        .def_readwrite("attention_output_norm", &Layer::attention_output_norm)
        .def_readwrite("mlp_norm", &Layer::mlp_norm)
        .def_readwrite("mlp_output_norm", &Layer::mlp_output_norm)
        .def_readwrite("query_norm", &Layer::query_norm)
        .def_readwrite("key_norm", &Layer::key_norm)
        .def_readwrite("window", &Layer::window)
        .def_readwrite("rotation", &Layer::rotation)
        .def("set_matrices", [](Layer& layer, const std::array<std::shared_ptr<Matrix>, 7>& matrices) {
            const std::array<SharedMatrix*, 7> own{&layer.query, &layer.key, &layer.value, &layer.output,
                                                   &layer.gate,  &layer.up,  &layer.down};
            for (std::size_t i = 0; i < own.size(); ++i) *own[i] = matrices[i];
        });
    py::class_<Settings>(module, "Settings")
        .def(py::init<>())
        .def_readwrite("heads", &Settings::heads)
        .def_readwrite("num_kv_heads", &Settings::num_kv_heads)
        .def_readwrite("head_size", &Settings::head_size)
        .def_readwrite("epsilon", &Settings::epsilon)
        .def_readwrite("scale", &Settings::scale)
        .def_readwrite("attention_softcap", &Settings::attention_softcap)
        .def_readwrite("logit_softcap", &Settings::logit_softcap)
        .def_readwrite("embedding_scale", &Settings::embedding_scale)
        .def_readwrite("gelu", &Settings::gelu)
        .def("add_rotation", [](Settings& settings, const Numbers& frequencies, float factor) {
            settings.rotations.push_back({frequencies, factor});
        });
    py::class_<Cache>(module, "Cache")
        .def(py::init([](const Transformer& model) { return Cache(model.cache_shape()); }))
        .def_readonly("length", &Cache::length)
        .def("keep",
             [](Cache& cache, const std::vector<std::size_t>& columns) {
                 const CachesInUse in_use({&cache});
                 cache.keep(columns);
             })
        .def("cut",
             [](Cache& cache, std::size_t tokens) {
                 const CachesInUse in_use({&cache});
                 cache.cut(tokens);
             })
        .def_property_readonly("memory", &Cache::memory)
        .def("first",
             [](Cache& cache, std::size_t tokens) {
                 const CachesInUse in_use({&cache});
                 return cache.first(tokens);
             })
        .def("__copy__", [](Cache& cache) {
            const CachesInUse in_use({&cache});
            Cache copied = cache;
            copied.in_use = false;
            return copied;
        });
    py::class_<Transformer>(module, "Transformer")
        .def(py::init([](const Settings& settings, const std::vector<Layer>& layers,
                         const std::shared_ptr<Matrix>& embedding, const std::shared_ptr<Matrix>& projection,
                         const Numbers& norm, std::size_t isa) {
                 return std::make_unique<Transformer>(settings, layers, embedding, projection, norm, isa);
             }),
             "settings"_a, "layers"_a, "embedding"_a, "projection"_a, "norm"_a, "isa"_a = 0)
        .def_property_readonly("hidden_size", &Transformer::hidden)
        .def_property_readonly("max_cheap_rows", &Transformer::max_cheap_rows)
        .def("read", &read, "caches"_a, "counts"_a, "tokens"_a, "parents"_a, "layers"_a, "threads"_a, "grow"_a = false)
        .def(
            "logits",
            [](const Transformer& model, const Array<float>& states, std::size_t threads) {
                const auto logits = [&](auto... at) { model.logits(at..., threads); };
                return computed<float>(model, states, model.vocabulary(), logits);
            },
            "states"_a, "threads"_a)
        .def("logits_of", &logits_of, "states"_a, "tokens"_a, "counts"_a, "threads"_a)
        .def(
            "best",
            [](const Transformer& model, const Array<float>& states, std::size_t threads) {
                const auto best = [&](auto... at) { model.best(at..., threads); };
                return computed<std::int64_t>(model, states, 1, best).reshape({-1});
            },
            "states"_a, "threads"_a);
}

}  // namespace engine
