# find_package(gemm) defines gemm::gemm, the shared library, and gemm::static where libgemm.a is installed.
get_filename_component(_gemm_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET gemm::gemm)
  add_library(gemm::gemm SHARED IMPORTED)
  set_target_properties(gemm::gemm PROPERTIES
    IMPORTED_LOCATION "${_gemm_prefix}/lib/libgemm.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_gemm_prefix}/include")
endif()
if(NOT TARGET gemm::static AND EXISTS "${_gemm_prefix}/lib/libgemm.a")
  add_library(gemm::static STATIC IMPORTED)
  set_target_properties(gemm::static PROPERTIES
    IMPORTED_LOCATION "${_gemm_prefix}/lib/libgemm.a"
    INTERFACE_INCLUDE_DIRECTORIES "${_gemm_prefix}/include"
    INTERFACE_LINK_LIBRARIES "-lm;-pthread")
endif()
