#include "lab/json.h"

template class nlohmann::detail::serializer<nlohmann::ordered_json>;
