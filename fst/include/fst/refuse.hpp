// Errors of invalid arguments and files, ValueErrors in Python.
#pragma once

#include <sstream>
#include <stdexcept>

namespace fst {

// Throws std::invalid_argument with a message of text and numbers; by value, so that callers keep them in registers.
template <typename... Parts>
[[noreturn, gnu::noinline, gnu::cold]] void refuse(Parts... parts) {
    std::ostringstream message;
    message.exceptions(std::ios::badbit);  // no memory is another error, and no shorter message
    (message << ... << parts);
    throw std::invalid_argument(message.str());
}

}  // namespace fst
