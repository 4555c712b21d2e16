// The loops for every processor.

#define ENGINE_ISA 0
#include "loops.inc"

namespace engine {

const Operations plain_operations = kOperations;

}  // namespace engine
