// Errors of invalid arguments, ValueErrors in Python.
#pragma once

#include <stdexcept>
#include <string>

namespace engine {

inline void expect(bool fine, const std::string& what) {
    if (!fine) throw std::invalid_argument("expected " + what);
}

}  // namespace engine
