// The loops for every processor.

#include "operations.hpp"

#define ENGINE_ISA 0
#include "operations/loops.inc"

namespace engine {

const Operations plain_operations = kOperations;

}  // namespace engine
