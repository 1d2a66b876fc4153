/* The Python face: each function releases the GIL while it works. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "jpeg.h"

static const char *const reasons[VERDICTS] = {
    [BAD_HEADER] = "its marker segments are damaged",
    [NOT_BASELINE] = "it is not a baseline JPEG of one scan, grey or in three components",
    [BAD_SAMPLING] = "its components are sampled in an unusual way",
    [BAD_TABLES] = "its Huffman tables are missing or damaged",
    [BAD_CODES] = "its coded data are damaged or cut short",
    [BAD_MARKERS] = "its restart markers are missing or out of order",
    [BAD_DC] = "it has values beyond those of eight bits",
};

static PyObject *same(PyObject *data)
{
    return PyBytes_FromObject(data); /* of bytes, the object itself */
}

static PyObject *built(const buffer *out)
{
    return PyBytes_FromStringAndSize((const char *)out->bytes, (Py_ssize_t)out->size);
}

/* tile(data, pixels, optimise) -> bytes; what cannot be tiled comes back as it is. */
static PyObject *tile(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *data;
    unsigned pixels;
    int optimise = 1;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "OI|p", &data, &pixels, &optimise) ||
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE))
        return NULL;
    buffer out = {0};
    verdict said;
    Py_BEGIN_ALLOW_THREADS
    said = jpeg_tile(view.buf, (size_t)view.len, pixels, optimise, &out);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    PyObject *answer = said == NO_MEMORY ? PyErr_NoMemory() : said == FINE ? built(&out) : same(data);
    buffer_free(&out);
    return answer;
}

/* crop(data, x, y, width, height) -> (bytes, dx, dy), or why not: a clause, None for a box outside the picture. */
static PyObject *crop(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *data;
    long x, y, width, height;
    Py_buffer view;
    if (!PyArg_ParseTuple(args, "Ollll", &data, &x, &y, &width, &height) ||
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE))
        return NULL;
    buffer out = {0};
    verdict said;
    box wanted = {0};
    unsigned dx = 0, dy = 0;
    if (x >= 0 && y >= 0 && width > 0 && height > 0 && x <= 65535 && y <= 65535 && width <= 65535 && height <= 65535)
        wanted = (box){(unsigned)x, (unsigned)y, (unsigned)width, (unsigned)height};
    Py_BEGIN_ALLOW_THREADS
    said = jpeg_crop(view.buf, (size_t)view.len, wanted, &out, &dx, &dy);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    PyObject *answer;
    if (said == FINE || said == WHOLE)
        answer = Py_BuildValue("(NII)", said == FINE ? built(&out) : same(data), dx, dy);
    else if (said == NO_MEMORY)
        answer = PyErr_NoMemory();
    else
        answer = Py_BuildValue("z", said == OUTSIDE ? NULL : reasons[said]);
    buffer_free(&out);
    return answer;
}

static PyMethodDef methods[] = {
    {"tile", tile, METH_VARARGS, "tile(data, pixels, optimise=True)"},
    {"crop", crop, METH_VARARGS, "crop(data, x, y, width, height)"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "wds_tools.image._kernel", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernel(void)
{
    return PyModuleDef_Init(&definition);
}
