#include "formats.hpp"

#include <fst/refuse.hpp>

namespace engine {

void refuse_type(Type type) {
    fst::refuse("expected weights as F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K or Q6_K, got type ",
                static_cast<int>(type));
}

Type type_of(int number) {
    const auto type = static_cast<Type>(number);
    if (type == Type::kUpper) refuse_type(type);
    block_of(type);  // refuses what is no format
    return type;
}

}  // namespace engine
