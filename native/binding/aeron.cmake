# Aeron's CMake files use libuuid and libbsd wherever they find them. A wheel must not need what the build machine happened to have: Aeron has code for
# machines without either.
set(UUID_H_EXISTS FALSE)
set(LIBUUID_EXISTS FALSE)
set(UUID_GENERATE_PROTOTYPE_EXISTS FALSE)
set(BSDSTDLIB_H_EXISTS FALSE)
set(LIBBSD_EXISTS FALSE)

# a target directory that outlives an isolated build names the ninja of an environment that is gone
if(CMAKE_MAKE_PROGRAM AND NOT EXISTS "${CMAKE_MAKE_PROGRAM}")
  unset(CMAKE_MAKE_PROGRAM CACHE)
endif()
