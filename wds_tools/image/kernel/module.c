/* The Python face: each function releases the GIL while it works. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "jpeg.h"
#include "resize.h"

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

/* Whether a segment before the scan may say which way is up: EXIF or XMP. */
static int may_be_turned(const jpeg *image)
{
    static const char *const names[] = {"Exif", "http://ns.adobe.com/xap/1.0/"};
    segment found;
    for (size_t at = 2; at < image->sos && jpeg_next_segment(image->data, image->size, &at, &found);)
        for (size_t i = 0; found.code == 0xE1 && i < sizeof names / sizeof *names; i++) {
            size_t length = strlen(names[i]) + 1; /* with the zero behind it */
            if (found.length >= length && !memcmp(image->data + found.body, names[i], length))
                return 1;
        }
    return 0;
}

/* plain_size(data) -> (width, height) of a JPEG that can be cropped and is stored upright, None for any other bytes. */
static PyObject *plain_size(PyObject *module, PyObject *data)
{
    (void)module;
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE))
        return NULL;
    jpeg image;
    int plain = jpeg_parse(&image, view.buf, (size_t)view.len) == FINE && !may_be_turned(&image);
    PyBuffer_Release(&view);
    if (!plain)
        Py_RETURN_NONE;
    return Py_BuildValue("(II)", image.width, image.height);
}

static int is_bytes(const Py_buffer *view)
{
    return view->itemsize == 1 && (!view->format || !strcmp(view->format, "B"));
}

/* resize(pixels, left, top, right, bottom, out, mirrored, portable) */
static PyObject *resize(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *source, *target;
    edges box;
    int mirrored, portable;
    if (!PyArg_ParseTuple(args, "OddddOpp:resize", &source, &box.left, &box.top, &box.right, &box.bottom, &target,
                          &mirrored, &portable))
        return NULL;
    Py_buffer in, out;
    if (PyObject_GetBuffer(source, &in, PyBUF_RECORDS_RO) < 0)
        return NULL;
    if (PyObject_GetBuffer(target, &out, PyBUF_CONTIG | PyBUF_FORMAT) < 0) {
        PyBuffer_Release(&in);
        return NULL;
    }
    const Py_ssize_t most = 1 << 24;
    int good = is_bytes(&in) && is_bytes(&out) && in.ndim == 3 && in.shape[2] == 3 && in.strides[2] == 1 &&
               in.strides[1] == 3 && 0 < in.shape[0] && in.shape[0] <= most && 0 < in.shape[1] && in.shape[1] <= most && out.ndim == 3 &&
               out.shape[0] == 3 && 0 < out.shape[1] && out.shape[1] <= most &&
               0 < out.shape[2] && out.shape[2] <= most && 0 <= box.left && box.left < box.right &&
               box.right <= (double)in.shape[1] && 0 <= box.top && box.top < box.bottom &&
               box.bottom <= (double)in.shape[0];
    int failed = 0;
    if (good) {
        picture_rgb picture = {in.buf, in.strides[0], (int)in.shape[1], (int)in.shape[0]};
        planes_rgb planes = {out.buf, (int)out.shape[2], (int)out.shape[1]};
        Py_BEGIN_ALLOW_THREADS
        failed = resize_rgb(picture, box, planes, mirrored, portable);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&in);
    PyBuffer_Release(&out);
    if (!good) {
        PyErr_SetString(PyExc_ValueError,
                        "resize takes uint8 of (height, width, 3), a box inside of it, and uint8 of (3, height, width)");
        return NULL;
    }
    if (failed)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"tile", tile, METH_VARARGS, "tile(data, pixels, optimise=True)"},
    {"crop", crop, METH_VARARGS, "crop(data, x, y, width, height)"},
    {"plain_size", plain_size, METH_O, "plain_size(data)"},
    {"resize", resize, METH_VARARGS, "resize(pixels, left, top, right, bottom, out, mirrored, portable)"},
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
