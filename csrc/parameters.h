/* Checks the parameters of tile.h if PARAMETERS_OF_TILE is defined, else those of panel.h. If one is missing, the
 * compiler stops with an error that names it. Both headers describe their parameters. */
#ifdef PARAMETERS_OF_TILE
#if !defined(NAME)
#error "tile.h needs NAME"
#endif
#if !defined(T)
#error "tile.h needs T"
#endif
#if !defined(MR)
#error "tile.h needs MR"
#endif
#if !defined(NV)
#error "tile.h needs NV"
#endif
#if !defined(TALLEST)
#error "tile.h needs TALLEST"
#endif
#if !defined(TILES)
#error "tile.h needs TILES"
#endif
#if !defined(FMA)
#error "tile.h needs FMA"
#endif
#if !defined(ACCUMULATORS)
#error "tile.h needs ACCUMULATORS"
#endif
#if defined(V) && !defined(VL)
#error "tile.h needs VL where there is V"
#endif
#if defined(V) && !defined(LOAD)
#error "tile.h needs LOAD where there is V"
#endif
#if defined(V) && !defined(STORE)
#error "tile.h needs STORE where there is V"
#endif
#if defined(V) && !defined(SPLAT)
#error "tile.h needs SPLAT where there is V"
#endif
#if defined(V) && !defined(SCALED) && !defined(MUL)
#error "tile.h needs MUL, or SCALED, where there is V"
#endif
#if defined(V) && !defined(PART)
#error "tile.h needs PART where there is V"
#endif
#if defined(V) && !defined(PART_OF)
#error "tile.h needs PART_OF where there is V"
#endif
#if defined(V) && !defined(LOAD_PART)
#error "tile.h needs LOAD_PART where there is V"
#endif
#if defined(V) && !defined(STORE_PART)
#error "tile.h needs STORE_PART where there is V"
#endif
#if defined(C_T) && !defined(LOAD_C)
#error "tile.h needs LOAD_C where there is C_T"
#endif
#if defined(C_T) && !defined(STORE_C)
#error "tile.h needs STORE_C where there is C_T"
#endif
#if defined(C_T) && !defined(LOAD_C_PART)
#error "tile.h needs LOAD_C_PART where there is C_T"
#endif
#if defined(C_T) && !defined(STORE_C_PART)
#error "tile.h needs STORE_C_PART where there is C_T"
#endif
#if defined(IN) && !defined(WIDEN_IN)
#error "tile.h needs WIDEN_IN where there is IN"
#endif
#if defined(IN) && !defined(SPLAT_IN)
#error "tile.h needs SPLAT_IN where there is IN"
#endif
#if defined(IN) && !defined(LOAD_IN)
#error "tile.h needs LOAD_IN where there is IN"
#endif
#if defined(IN) && !defined(LOAD_IN_PART)
#error "tile.h needs LOAD_IN_PART where there is IN"
#endif
#if defined(ONE) && !defined(SCALED) && !defined(SCALAR)
#error "tile.h needs SCALAR, or SCALED, where there is ONE"
#endif
#if defined(SCALED) && !defined(PLUS_SCALED)
#error "tile.h needs PLUS_SCALED where there is SCALED"
#endif
#if defined(ELEMENT) && !defined(FMA_ELEMENT)
#error "tile.h needs FMA_ELEMENT where there is ELEMENT"
#endif
#if defined(PACK_A) && !defined(PACK_B)
#error "tile.h needs PACK_B where there is PACK_A"
#endif
#if defined(KERNEL) && defined(PACK_A) && !defined(A_T)
#error "tile.h needs A_T where there is PACK_A"
#endif
#if defined(KERNEL) && defined(PACK_A) && !defined(B_T)
#error "tile.h needs B_T where there is PACK_A"
#endif
#if defined(TRANSPOSE) && !defined(TRANSPOSE_DEPTH)
#error "tile.h needs TRANSPOSE_DEPTH where there is TRANSPOSE"
#endif
#else
#if !defined(KERNEL)
#error "panel.h needs KERNEL"
#endif
#if !defined(TARGET)
#error "panel.h needs TARGET"
#endif
#if !defined(MR)
#error "panel.h needs MR"
#endif
#if !defined(NV)
#error "panel.h needs NV"
#endif
#if !defined(VL)
#error "panel.h needs VL"
#endif
#if !defined(K_GROUP)
#error "panel.h needs K_GROUP"
#endif
#if !defined(A)
#error "panel.h needs A"
#endif
#if !defined(B)
#error "panel.h needs B"
#endif
#if !defined(C)
#error "panel.h needs C"
#endif
#if !defined(SUM)
#error "panel.h needs SUM"
#endif
#if !defined(PA)
#error "panel.h needs PA"
#endif
#if !defined(PB)
#error "panel.h needs PB"
#endif
#if !defined(WIDEN_A)
#error "panel.h needs WIDEN_A"
#endif
#if !defined(WIDEN_B)
#error "panel.h needs WIDEN_B"
#endif
#if !defined(WIDEN_C)
#error "panel.h needs WIDEN_C"
#endif
#if !defined(NARROW)
#error "panel.h needs NARROW"
#endif
#if !defined(SCALAR)
#error "panel.h needs SCALAR"
#endif
#if !defined(IS_ONE)
#error "panel.h needs IS_ONE"
#endif
#if !defined(MUL)
#error "panel.h needs MUL"
#endif
#if !defined(FMA)
#error "panel.h needs FMA"
#endif
#if !defined(C_IS_SUM)
#error "panel.h needs C_IS_SUM"
#endif
#if !defined(TILE) && !defined(ZERO)
#error "panel.h needs ZERO"
#endif
#if !defined(TILE) && !defined(ACC)
#error "panel.h needs ACC"
#endif
#if !defined(TILE) && !defined(GET)
#error "panel.h needs GET"
#endif
#if !defined(TILE) && !defined(PUT)
#error "panel.h needs PUT"
#endif
#if !defined(TILE) && !defined(Y)
#error "panel.h needs Y"
#endif
#if !defined(TILE) && !defined(ROW)
#error "panel.h needs ROW"
#endif
#if !defined(TILE) && !defined(X)
#error "panel.h needs X"
#endif
#if !defined(TILE) && !defined(SPLAT)
#error "panel.h needs SPLAT"
#endif
#if !defined(TILE) && !defined(STEP)
#error "panel.h needs STEP"
#endif
#if defined(OFFSET) && !defined(SUBTRACT)
#error "panel.h needs SUBTRACT where there is OFFSET"
#endif
#if defined(ENTER) && !defined(LEAVE)
#error "panel.h needs LEAVE where there is ENTER"
#endif
#endif
#undef PARAMETERS_OF_TILE
