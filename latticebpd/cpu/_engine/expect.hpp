// Errors of invalid arguments, ValueErrors in Python.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace engine {

inline void expect(bool fine, std::string_view what) {  // a literal costs nothing where all is fine
    if (!fine) throw std::invalid_argument("expected " + std::string(what));
}

}  // namespace engine
