"""Programs over secret shares, and models applied to encrypted or shared rows."""
