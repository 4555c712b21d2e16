// The Python side of the file formats: reading ARPA, building automata, symbol tables.

#include <pybind11/functional.h>
#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "arpa.hpp"
#include "arrays.hpp"
#include "bindings.hpp"

namespace py = pybind11;

namespace fst_core {
namespace {

// Turns an error into ValueError. Messages may quote any bytes of a file, so they are decoded leniently.
void translate(std::exception_ptr thrown) {
    try {
        std::rethrow_exception(thrown);
    } catch (const std::invalid_argument& error) {
        const std::string text = error.what();
        PyObject* decoded = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
        PyErr_SetObject(PyExc_ValueError, py::reinterpret_steal<py::object>(decoded).ptr());
    }
}

// Some n-grams of the order being built: rows of labels, [n, order], with natural costs.
void add_ngrams(AutomatonBuilder& builder, const Array<std::int32_t>& labels, const Array<double>& costs,
                const Array<double>& backoffs) {
    if (labels.ndim() != 2 || costs.ndim() != 1 || backoffs.ndim() != 1 || costs.shape(0) != labels.shape(0) ||
        backoffs.shape(0) != labels.shape(0) || labels.shape(1) < 1)
        refuse("expected labels [n, order], costs [n] and backoffs [n]");
    const std::size_t order = labels.shape(1);
    if (order != builder.num_orders() + 1)
        refuse("expected the ", builder.num_orders() + 1, "-grams next, got ", order, "-grams");
    const std::size_t before = builder.num_added();
    for (py::ssize_t row = 0; row < labels.shape(0); ++row) {
        const std::int32_t* ngram = labels.data(row, 0);
        const std::uint32_t context = builder.find(ngram, order - 1);
        if (context == AutomatonBuilder::kNone)
            refuse("row ", before + row, " of the ", order,
                   "-grams: expected its context among the n-grams one order below");
        builder.add(context, ngram[order - 1], costs.data()[row], backoffs.data()[row]);
    }
}

// Reads `count` entries of an OpenFst symbol table from byte `begin` on: each an int32 length, the bytes of the symbol
// and an int64 label. Returns the labels, where the symbols begin in the file, their lengths, and the end of the last
// entry. Throws std::invalid_argument where the file ends before them.
py::tuple read_symbols(const py::buffer& buffer, std::int64_t begin, std::int64_t count) {
    const py::buffer_info file = buffer.request();
    const std::int64_t size = file.size * file.itemsize;
    std::int64_t at = begin;
    std::vector<std::int64_t> labels, begins, lengths;
    const auto take = [&](std::int64_t bytes) {
        if (at < 0 || bytes < 0 || at > size || bytes > size - at)
            refuse("byte ", at, ": expected a symbol and its label, got the end of the file; it is damaged");
        at += bytes;
        return static_cast<const std::byte*>(file.ptr) + at - bytes;
    };
    for (std::int64_t entry = 0; entry < count; ++entry) {
        std::int32_t length;
        std::memcpy(&length, take(sizeof length), sizeof length);
        begins.push_back(at);
        lengths.push_back(length);
        take(length);
        std::int64_t label;
        std::memcpy(&label, take(sizeof label), sizeof label);
        labels.push_back(label);
    }
    return py::make_tuple(array_of(labels), array_of(begins), array_of(lengths), at);
}

}  // namespace

void bind_formats(py::module_& module) {
    py::register_local_exception_translator(&translate);
    py::class_<AutomatonBuilder>(module, "AutomatonBuilder", "Builds a backoff automaton from n-grams, order by order.")
        .def(py::init<>())
        .def("add_ngrams", &add_ngrams, py::arg("labels"), py::arg("costs"), py::arg("backoffs"))
        .def("end_order", &AutomatonBuilder::end_order)
        .def("finish", &AutomatonBuilder::finish)
        .def_property_readonly("num_states", &AutomatonBuilder::num_states)
        .def_property_readonly("num_arcs", &AutomatonBuilder::num_arcs)
        .def_property_readonly("start", &AutomatonBuilder::start)
        .def_property_readonly("num_ngrams", &AutomatonBuilder::num_ngrams)
        .def(
            "write",
            [](const AutomatonBuilder& self, const py::function& sink) {
                self.write([&sink](const char* data, std::size_t size) { sink(py::bytes(data, size)); });
            },
            py::arg("sink"));

    py::class_<ArpaParser>(module, "ArpaParser", "Reads ARPA text, piece by piece, into a backoff automaton.")
        .def(py::init([](const py::function& number_words, bool strict) {
                 return ArpaParser(
                     // Moving the lambda copies a Python reference, which raises nothing.
                     // NOLINTNEXTLINE(bugprone-exception-escape)
                     [number_words](const std::vector<std::string>& words) {
                         py::list list;
                         for (const std::string& word : words) list.append(py::bytes(word));
                         return number_words(list).cast<std::vector<std::int64_t>>();
                     },
                     strict);
             }),
             py::arg("number_words"), py::arg("strict") = true)
        .def("feed", &ArpaParser::feed, py::arg("text"))
        .def("finish", &ArpaParser::finish)
        .def_property_readonly("automaton", &ArpaParser::automaton)
        .def_property_readonly("unk_label", &ArpaParser::unk_label)
        .def_property_readonly("warnings", &ArpaParser::warnings);
    module.def("read_symbols", &read_symbols, py::arg("file"), py::arg("begin"), py::arg("count"),
               "The labels, begins and lengths of the symbols in a file, and where they end.");
}

}  // namespace fst_core
