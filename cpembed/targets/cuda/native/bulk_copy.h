#pragma once
#include "mbarrier.h"
