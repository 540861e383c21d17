# Install rules for headers, libraries, the CMake package, rapt.pc and the program. Included by CMakeLists.txt.
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/rapt")

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/rapt" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(TARGETS rapt_shared rapt_static EXPORT raptTargets)
install(EXPORT raptTargets NAMESPACE rapt:: DESTINATION "${package_dir}")
if(TARGET rapt_program)
  install(TARGETS rapt_program)
endif()

configure_package_config_file(cmake/raptConfig.cmake.in "${PROJECT_BINARY_DIR}/raptConfig.cmake"
  INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/raptConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/raptConfig.cmake" "${PROJECT_BINARY_DIR}/raptConfigVersion.cmake"
  DESTINATION "${package_dir}")

configure_file(cmake/rapt.pc.in "${PROJECT_BINARY_DIR}/rapt.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/rapt.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
install(FILES LICENSE NOTICE DESTINATION "${CMAKE_INSTALL_DOCDIR}")
